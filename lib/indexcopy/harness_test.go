package indexcopy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// waitMost is how long a test waits for what should happen soon.
const waitMost = time.Minute

// place is a log on a NATS server with logins and permissions.
type place struct {
	*bustest.NATS
	folder string // of the logins
	ingest *bus.Bus
	t      testing.TB
}

func newPlace(t testing.TB) *place {
	t.Helper()
	p := &place{folder: t.TempDir(), t: t}
	if err := logins.Init(p.folder, logins.Default()...); err != nil {
		t.Fatal(err)
	}
	p.NATS = bustest.WithUsers(t, filepath.Join(p.folder, logins.UsersFile))
	p.ingest = p.connect(proto.UserIngest)
	t.Cleanup(func() {
		for _, line := range p.Refused() {
			t.Errorf("NATS has refused: %s", line)
		}
	})
	return p
}

// connect is a process of a user.
func (p *place) connect(user string) *bus.Bus {
	p.t.Helper()
	b, err := bus.Open(p.t.Context(), bus.Options{
		Name: user, URL: p.URL, LoginFile: logins.LoginFile(p.folder, user), Sizing: proto.DefaultSizing(),
		Provisions: user == proto.UserIngest, Needs: []string{proto.StreamEvents},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(b.Close)
	return b
}

// note is an event whose bytes cannot be compressed.
func note(n int) *nostr.Event {
	var noise [300]byte
	rand.Read(noise[:])
	ev := &nostr.Event{
		PubKey: strings.Repeat("ab", 32), Kind: 1, CreatedAt: nostr.Timestamp(1000 + n), Content: fmt.Sprintf("%d %x", n, noise),
		Sig: hex.EncodeToString(noise[:64]), Tags: nostr.Tags{{"t", "x"}},
	}
	ev.ID = ev.GetID()
	return ev
}

// write appends so many events to the log.
func (p *place) write(n int) {
	p.t.Helper()
	for first := 0; first < n; first += 500 {
		var msgs []*nats.Msg
		for i := first; i < min(n, first+500); i++ {
			ev := note(i)
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
		}
		if _, err := p.ingest.PublishBatch(p.t.Context(), msgs, nil); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *place) head() uint64 {
	p.t.Helper()
	head, err := p.ingest.LastSeq(p.t.Context(), proto.StreamEvents)
	if err != nil {
		p.t.Fatal(err)
	}
	return head
}

// peer is a process with an index.
type peer struct {
	*bus.Bus
	Index *eventdb.DB
	dir   string
	user  string
	p     *place
}

// peer makes one whose index is bound to the log and empty.
func (p *place) peer(user string) *peer {
	p.t.Helper()
	r := &peer{Bus: p.connect(user), dir: p.t.TempDir(), user: user, p: p}
	var err error
	if r.Index, err = eventdb.Open(r.dir); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := r.Index.Close(); err != nil && !errors.Is(err, eventdb.ErrClosed) {
			p.t.Error(err)
		}
	})
	if err := eventdb.Bind(p.t.Context(), r.JS, r.Index, quiet); err != nil {
		p.t.Fatal(err)
	}
	return r
}

var quiet = slog.New(slog.DiscardHandler)

// read reads the log up to its head.
func (r *peer) read() *peer {
	r.p.t.Helper()
	ctx, cancel := context.WithTimeout(r.p.t.Context(), waitMost)
	defer cancel()
	done := make(chan error, 1)
	following, stop := context.WithCancel(ctx)
	go func() { done <- eventdb.Follow(following, r.JS, r.Index, quiet) }()
	err := r.Index.WaitFor(ctx, r.p.head())
	stop()
	ended := <-done
	if errors.Is(ended, context.Canceled) { // it had all before it began to follow
		ended = nil
	}
	if err := errors.Join(err, ended); err != nil {
		r.p.t.Fatal(err)
	}
	return r
}

func (r *peer) giver() Giver {
	return Giver{Conn: r.Conn, Index: r.Index, As: r.user, Name: "a " + r.user, Rate: 1 << 40, Log: quiet}
}

// gives serves copies until the test ends, or stop is called.
func (r *peer) gives(g Giver) (stop func()) {
	r.p.t.Helper()
	return r.serves(func(ctx context.Context) error { return g.Serve(ctx) }, g.As)
}

// serves runs something until stop is called, and waits until it is heard on the bus.
func (r *peer) serves(run func(context.Context) error, as string) (stop func()) {
	r.p.t.Helper()
	ctx, cancel := context.WithCancel(r.p.t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			r.p.t.Error(err)
		}
	}
	r.p.t.Cleanup(stop)
	asker := r.p.connect(as)
	defer asker.Close()
	for deadline := time.Now().Add(waitMost); ; time.Sleep(5 * time.Millisecond) {
		if _, err := asker.Conn.Request(proto.IndexOffers(as), []byte("{}"), time.Second); err == nil {
			return stop
		}
		if time.Now().After(deadline) {
			r.p.t.Fatal("nobody gives copies")
		}
	}
}

func (r *peer) taker() Taker {
	_, takes := proto.IndexCopies([]string{r.user})
	return Taker{
		Conn: r.Conn, JS: r.JS, Index: r.Index, From: takes, Name: "another " + r.user, Log: slog.New(slog.NewTextHandler(r.p.t.Output(), nil)),
		Worth: 10, wait: 5 * time.Second, pause: time.Millisecond, first: waitMost,
	}
}

// same: two indexes hold the same.
func same(t testing.TB, a, b *eventdb.DB) {
	t.Helper()
	if x, y := all(t, a), all(t, b); !slices.Equal(x, y) {
		t.Errorf("%d events at %d, want the %d at %d", len(y), b.Seq(), len(x), a.Seq())
	}
}

func all(t testing.TB, db *eventdb.DB) (events []string) {
	t.Helper()
	v := db.View()
	defer v.Close()
	for raw, err := range v.QueryRaw(t.Context(), nostr.Filter{Tags: nostr.TagMap{"t": {"x"}}}) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, string(raw))
	}
	return events
}

// nothingLeft: no folder of a copy is there, on either side.
func nothingLeft(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			t.Errorf("left in the index: %s", e.Name())
		}
	}
}

// meddler gives copies, and changes what it says.
type meddler struct {
	offer func(*proto.IndexOffer)
	copy  func(*proto.IndexCopy)
	read  func(r proto.IndexRead, chunk []byte) ([]byte, error)
}

func (m meddler) serve(g Giver) func(context.Context) error {
	return func(ctx context.Context) error {
		d := newDesk(g)
		defer d.close()
		answer := func(subject string, do func(data []byte) (any, error)) error {
			sub, err := g.Conn.Subscribe(subject, func(msg *nats.Msg) {
				a, err := do(msg.Data)
				reply := nats.NewMsg(msg.Reply)
				if err != nil {
					reply.Header.Set(micro.ErrorCodeHeader, codeOf(err))
					reply.Header.Set(micro.ErrorHeader, err.Error())
				} else if chunk, is := a.([]byte); is {
					reply.Data = chunk
				} else {
					reply.Data, _ = json.Marshal(a)
				}
				_ = g.Conn.PublishMsg(reply)
			})
			context.AfterFunc(ctx, func() { _ = sub.Unsubscribe() })
			return err
		}
		prefix := proto.IndexOffers(g.As)
		err := errors.Join(
			answer(prefix+"."+d.replica+".begin", func([]byte) (any, error) {
				c, err := d.begin(ctx, proto.IndexAsk{})
				if m.copy != nil {
					m.copy(&c)
				}
				return c, err
			}),
			answer(prefix+"."+d.replica+".read", func(data []byte) (any, error) {
				var r proto.IndexRead
				if err := json.Unmarshal(data, &r); err != nil {
					return nil, err
				}
				chunk, err := d.read(ctx, r)
				if err == nil && m.read != nil {
					chunk, err = m.read(r, chunk)
				}
				return chunk, err
			}),
			answer(prefix+"."+d.replica+".end", func(data []byte) (any, error) {
				var r proto.IndexRead
				return nil, errors.Join(json.Unmarshal(data, &r), d.end(r))
			}),
			answer(prefix, func([]byte) (any, error) { // the last one: whoever has an offer begins at once
				o, err := d.offer()
				if m.offer != nil {
					m.offer(&o)
				}
				return o, err
			}))
		<-ctx.Done()
		return err
	}
}
