package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

var start = time.Unix(1_800_000_000, 0)

// one makes an entry of an author that is about so large and whose time ends after so many seconds.
func one(author string, kib int, ends int, change ...func(*held.Entry)) *held.Entry {
	ev := &nostr.Event{Kind: 30617, PubKey: strings.Repeat("0", 64-len(author)) + author, Content: strings.Repeat("x", max(0, kib<<10-1100)),
		CreatedAt: nostr.Timestamp(ends), Tags: nostr.Tags{{"d", author}}}
	ev.ID = ev.GetID()
	e, err := held.NewEntry(proto.Held{Event: ev, Identifier: author, Phase: proto.PhaseWaiting, HeldAt: start.Add(time.Duration(ends-1800) * time.Second), ExpiresAt: start.Add(time.Duration(ends) * time.Second)})
	if err != nil {
		panic(err)
	}
	for _, c := range change {
		c(e)
	}
	return e
}

func silent(e *held.Entry)                 { e.Phase = proto.PhaseSilent }
func reserved(e *held.Entry)               { e.Reserved = true }
func client(name string) func(*held.Entry) { return func(e *held.Entry) { e.Client = name } }
func relay(name string) func(*held.Entry)  { return func(e *held.Entry) { e.Relay = name } }

func TestAdmit(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	bounds := Bounds{Bytes: 4 * mib, Reserved: mib, Author: Load{3, mib}, Client: Load{4, 2 * mib}, Relay: Load{100, 3 * mib}}
	alike := func(n, kib int, change ...func(*held.Entry)) (list []*held.Entry) {
		for i := range n {
			list = append(list, one(fmt.Sprint(i), kib, i, change...))
		}
		return list
	}
	heavy := one("a", 900, 50)
	for name, c := range map[string]struct {
		held    []*held.Entry
		new     *held.Entry
		leaving []int
		full    string
		drop    []int // of held
	}{
		"into nothing":                                                   {nil, one("a", 10, 1), nil, "", nil},
		"an author with as many as may be":                               {[]*held.Entry{one("a", 1, 1), one("a", 1, 2), one("a", 1, 3)}, one("a", 1, 4), nil, fullForAuthor, nil},
		"one of whom is replaced":                                        {[]*held.Entry{one("a", 1, 1), one("a", 1, 2), one("a", 1, 3)}, one("a", 1, 4), []int{1}, "", nil},
		"an author's silent ones make room, oldest first":                {[]*held.Entry{one("a", 1, 3, silent), one("a", 1, 2, silent), one("a", 1, 1)}, one("a", 1, 4), nil, "", []int{1}},
		"an author with too many bytes":                                  {[]*held.Entry{one("a", 900, 1)}, one("a", 200, 4), nil, fullForAuthor, nil},
		"a client with as many as may be, by many keys: its oldest goes": {alike(4, 1, client("c")), one("9", 1, 9, client("c")), nil, "", []int{0}},
		"but not any number":                                             {alike(3, 1000, relay("c")), one("9", 1010, 9, relay("c")), nil, "", []int{0}},
		"a full one: silent ones of all go, oldest first": {append(alike(4, 1000), one("7", 40, 9, silent), one("8", 40, 8, silent)),
			one("9", 30, 9), nil, "", []int{5}},
		"then the oldest of the heaviest author": {append(alike(30, 105), one("a", 500, 40), one("a", 400, 39)),
			one("99", 50, 99), nil, "", []int{31}},
		"or of the heaviest client, whose keys cost nothing": {append(alike(4, 510), alike(4, 500, client("c"))...),
			one("99", 100, 99), nil, "", []int{4}},
		"among the light the oldest":         {alike(40, 102), one("99", 100, 99), nil, "", []int{0}},
		"the newcomer, if no other has more": {alike(40, 102), one("99", 500, 99), nil, fullInAll, nil},
		"whose older ones go otherwise":      {append(alike(33, 97), heavy), one("a", 110, 99), nil, "", []int{33}},
		"owners have room of their own":      {alike(4, 1020), one("9", 500, 9, reserved), nil, "", nil},
		"where strangers do not make room":   {append(alike(4, 1000), one("9", 500, 0, reserved, silent)), one("a", 200, 9), nil, "", []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewRoom()
			for _, e := range c.held {
				l.Add(e)
			}
			before := l.loads[party{pool: openPool}]
			var leaving []*held.Entry
			for _, i := range c.leaving {
				leaving = append(leaving, c.held[i])
			}
			drop, full := l.Admit(bounds, c.new, leaving)
			var got []int
			for _, e := range drop {
				got = append(got, slices.Index(c.held, e))
			}
			if full != c.full || !slices.Equal(got, c.drop) {
				t.Errorf("full %q, drops %v; want %q, %v", full, got, c.full, c.drop)
			}
			if l.loads[party{pool: openPool}] != before {
				t.Error("the decision has changed the room")
			}
		})
	}
}

// TestRoomAgreesWithWhatIsHeld holds a room against plain sums, and the bounds against what
// Admit lets in.
func TestRoomAgreesWithWhatIsHeld(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	bounds := Bounds{Bytes: 400 << 10, Reserved: 100 << 10, Author: Load{20, 100 << 10}, Client: Load{30, 150 << 10}, Relay: Load{50, 200 << 10}}
	l, has := NewRoom(), map[string]*held.Entry{}
	for step := range 5000 {
		e := one(fmt.Sprint(random.IntN(12)), 1+random.IntN(20), step, func(e *held.Entry) {
			switch random.IntN(4) {
			case 0:
				e.Client = fmt.Sprint(random.IntN(5))
			case 1:
				e.Relay = fmt.Sprint(random.IntN(3))
			case 2:
				e.Reserved, e.Client = true, fmt.Sprint(random.IntN(3))
			}
			if random.IntN(3) == 0 {
				e.Phase = proto.PhaseSilent
			}
		})
		drop, full := l.Admit(bounds, e, nil)
		for _, gone := range drop {
			if gone.Reserved != e.Reserved || has[gone.Key] == nil {
				t.Fatalf("step %d drops %+v", step, gone.Held)
			}
			delete(has, gone.Key)
			l.Remove(gone)
		}
		if full == "" {
			has[e.Key] = e
			l.Add(e)
		} else if len(drop) > 0 {
			t.Fatal("refused, and others dropped for it")
		}
		sums := map[party]Load{}
		for _, e := range has {
			for _, p := range partiesOf(e) {
				sums[p] = Load{sums[p].Events + 1, sums[p].Bytes + weightOf(e)}
			}
		}
		for p, sum := range sums {
			most := bounds.most(p)
			if l.loads[p] != sum || most.Bytes > 0 && sum.Bytes > most.Bytes || most.Events > 0 && sum.Events > most.Events {
				t.Fatalf("step %d: %+v has %+v, the room says %+v, at most %+v", step, p, sum, l.loads[p], most)
			}
		}
		if len(l.loads) != len(sums) {
			t.Fatalf("step %d: %d parties are counted, want %d", step, len(l.loads), len(sums))
		}
	}
}
