package strfry

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
	"tendril.dev/test/outside"
)

// serve runs a relay and gives its URL.
func serve(t *testing.T, r *Relay) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "ws://" + l.Addr().String()
}

type client struct {
	*outside.Socket
	t *testing.T
}

func dial(t *testing.T, url string) client {
	t.Helper()
	s, err := outside.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return client{s, t}
}

func (c client) send(elements ...any) {
	c.t.Helper()
	if err := c.Send(c.t.Context(), elements...); err != nil {
		c.t.Fatal(err)
	}
}

// next is the next message as it was sent.
func (c client) next() string {
	c.t.Helper()
	m, err := c.Next(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := json.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

func (c client) want(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		if got := c.next(); got != text {
			c.t.Fatalf("answered %.300s, want %s", got, text)
		}
	}
}

// events makes unsigned events of a few kinds, authors and tags, some of one second.
func events(n int) (all []*nostr.Event) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		ev := &nostr.Event{
			PubKey: strings.Repeat(fmt.Sprint(r.IntN(4)), 64), CreatedAt: nostr.Timestamp(1000 + r.IntN(n/2)), Kind: 1617 + r.IntN(5),
			Tags: nostr.Tags{{"e", fmt.Sprint(r.IntN(6))}, {"a", fmt.Sprint(r.IntN(3))}, {"e", fmt.Sprint(r.IntN(6))}, {"long", "x"}},
			Sig:  strings.Repeat("0", 128), Content: fmt.Sprint("event ", r.Uint64()),
		}
		ev.ID = ev.GetID()
		all = append(all, ev)
	}
	return all
}

func load(t *testing.T, r *Relay, all []*nostr.Event) {
	t.Helper()
	var raws [][]byte
	for _, ev := range all {
		raws = append(raws, []byte(ev.String()))
	}
	if added, err := r.Load(raws); err != nil || added != len(all) {
		t.Fatalf("loaded %d of %d: %v", added, len(all), err)
	}
}

// TestWords: what is too much or wrong is answered as strfry answers it.
func TestWords(t *testing.T) {
	t.Parallel()
	r := New(Limits{Filters: 3, Subscriptions: 2})
	c := dial(t, serve(t, r))
	none := map[string]any{"limit": 0}
	for _, id := range []string{"1", "2", "3"} {
		c.send("REQ", id, none)
		c.want(`["EOSE","` + id + `"]`)
	}
	c.want(`["NOTICE","ERROR: too many concurrent REQs"]`) // there is no room for a third monitor
	c.send("CLOSE", "1")
	c.send("REQ", "3", none)
	c.send("REQ", "3", none) // takes its own place
	c.want(`["EOSE","3"]`, `["EOSE","3"]`)
	c.send("REQ", "4", none, none, none, none)
	c.want(`["NOTICE","ERROR: bad req: arr too big"]`)
	c.send("REQ", "4")
	c.want(`["NOTICE","ERROR: bad req: arr too small"]`)
	c.send("REQ", "4", map[string]any{"search": "x"})
	c.want(`["NOTICE","ERROR: bad req: unrecognised filter item"]`)
	c.send("REQ", strings.Repeat("x", 72), none)
	c.want(`["NOTICE","ERROR: bad req: invalid subscription id length"]`)
	c.send("NEG-MSG", "4", "61")
	c.want(`["NEG-ERR","4","closed: unknown subscription handle"]`)
	c.send("NEG-OPEN", "4", none, "61ff") // half a number
	if got := c.next(); !strings.HasPrefix(got, `["NOTICE","ERROR: bad msg: `) {
		t.Errorf("a broken message is answered %s", got)
	}
	c.send("COUNT", "4", none)
	c.want(`["NOTICE","ERROR: bad msg: unknown cmd"]`)
	if err := c.SendText(t.Context(), strings.Repeat(" ", 131073)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Next(t.Context()); err == nil {
		t.Error("a message that is too long does not end the connection")
	}
}

// TestReconcile: the other side of NIP-77 learns what it lacks, unless that is too much.
func TestReconcile(t *testing.T) {
	t.Parallel()
	all := events(1000)
	r := New(Limits{Reconciled: 900})
	load(t, r, all)
	c := dial(t, serve(t, r))
	const until = 1300
	var own []reconcile.Item
	want := map[[32]byte]bool{}
	total := 0
	for i, ev := range all {
		if ev.CreatedAt > until {
			continue
		}
		total++
		id, err := hex.DecodeString(ev.ID)
		if err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			want[[32]byte(id)] = true
		} else {
			own = append(own, reconcile.Item{CreatedAt: ev.CreatedAt, ID: [32]byte(id)})
		}
	}
	if total == len(all) || total > 900 {
		t.Fatalf("%d events are in the filter, the test is wrong", total)
	}
	set := reconcile.Pack(own)
	message, err := reconcile.Start(t.Context(), set, reconcile.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	c.send("NEG-OPEN", "n", map[string]any{}, hex.EncodeToString(message))
	c.want(`["NEG-ERR","n","blocked: too many query results"]`)
	c.send("NEG-OPEN", "n", map[string]any{"until": until}, hex.EncodeToString(message))
	found := map[[32]byte]bool{}
	for message != nil {
		m, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var digits string
		if string(m[0]) != `"NEG-MSG"` || json.Unmarshal(m[2], &digits) != nil {
			t.Fatalf("answered %s", bytes.Join([][]byte{m[0], m[2]}, []byte(" ")))
		}
		answer, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		if message, _, err = reconcile.Continue(t.Context(), set, answer, reconcile.DefaultLimits, func(id [32]byte) error {
			if want[id] {
				found[id] = true
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if message != nil {
			c.send("NEG-MSG", "n", hex.EncodeToString(message))
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d of %d missing events were found", len(found), len(want))
	}
	c.send("NEG-CLOSE", "n")
	c.send("NEG-MSG", "n", "61")
	c.want(`["NEG-ERR","n","closed: unknown subscription handle"]`)
}
