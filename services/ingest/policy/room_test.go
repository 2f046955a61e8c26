package policy

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
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

// entries reads a list of "author KiB end" with more words on each; "4* 1000" is one of that size
// by each of four authors.
func entries(text string) (list []*held.Entry) {
	for item := range strings.SplitSeq(text, ",") {
		var author string
		var n, kib, ends int
		if _, err := fmt.Sscan(item, &author, &kib, &ends); err == nil {
			n = 1
		} else {
			author = ""
			fmt.Sscanf(strings.TrimSpace(item), "%d* %d", &n, &kib)
		}
		says := func(word string) bool { return strings.Contains(item, word) }
		for i := range n {
			list = append(list, one(cmp.Or(author, fmt.Sprint(i)), kib, ends+i, func(e *held.Entry) {
				if e.Reserved = says("reserved"); says("silent") {
					e.Phase = proto.PhaseSilent
				}
				if says("client") {
					e.Client = "c"
				}
				if says("relay") {
					e.Relay = "c"
				}
			}))
		}
	}
	return list
}

// TestAdmit: what is held; what comes; whose place that takes; which of the held ones have to go,
// or the refusal.
func TestAdmit(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	bounds := Bounds{Bytes: 4 * mib, Reserved: mib, Author: Load{3, mib}, Client: Load{4, 2 * mib}, Relay: Load{100, 3 * mib}}
	for _, row := range fixture.Rows(`
		into nothing | | a 10 1 | | []
		an author with as many as may be | a 1 1, a 1 2, a 1 3 | a 1 4 | | rate-limited: too much of this author
		one of whom is replaced | a 1 1, a 1 2, a 1 3 | a 1 4 | the second's | []
		an author's silent ones make room, oldest first | a 1 3 silent, a 1 2 silent, a 1 1 | a 1 4 | | [1]
		an author with too many bytes | a 900 1 | a 200 4 | | rate-limited: too much of this author
		a client with as many as may be, by many keys: its oldest goes | 4* 1 client | 9 1 9 client | | [0]
		but not any number | 3* 1000 relay | 9 1010 9 relay | | [0]
		a full one: silent ones of all go, oldest first | 4* 1000, 7 40 9 silent, 8 40 8 silent | 9 30 9 | | [5]
		then the oldest of the heaviest author | 30* 105, a 500 40, a 400 39 | 99 50 99 | | [31]
		or of the heaviest client, whose keys cost nothing | 4* 510, 4* 500 client | 99 100 99 | | [4]
		among the light the oldest | 40* 102 | 99 100 99 | | [0]
		the newcomer, if no other has more | 40* 102 | 99 500 99 | | rate-limited: too much waits
		whose older ones go otherwise | 33* 97, a 900 50 | a 110 99 | | [33]
		owners have room of their own | 4* 1020 | 9 500 9 reserved | | []
		where strangers do not make room | 4* 1000, 9 500 0 reserved silent | a 200 9 | | [0]
	`) {
		t.Run(row[0], func(t *testing.T) {
			t.Parallel()
			l, has := NewRoom(), entries(row[1])
			for _, e := range has {
				l.Add(e)
			}
			before := l.loads[party{pool: openPool}]
			var leaving []*held.Entry
			if row[3] != "" {
				leaving = has[1:2]
			}
			drop, full := l.Admit(bounds, entries(row[2])[0], leaving)
			gone := []int{}
			for _, e := range drop {
				gone = append(gone, slices.Index(has, e))
			}
			if got := cmp.Or(full, fmt.Sprint(gone)); !strings.HasPrefix(got, row[4]) || full != "" && len(gone) > 0 {
				t.Errorf("%s, drops %v; want %s", got, gone, row[4])
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
