package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip77/negentropy"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy/storage/vector"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

// random makes n items, at most crowd of them in one second on average.
func random(rnd *rand.Rand, n, crowd int) []Item {
	items := make([]Item, n)
	for i := range items {
		items[i].CreatedAt = nostr.Timestamp(1_700_000_000 + rnd.IntN(n/crowd+1))
		for at := 0; at < 32; at += 8 {
			binary.LittleEndian.PutUint64(items[i].ID[at:], rnd.Uint64())
		}
	}
	return items
}

// divided is a case: what both sides have, and each alone.
type divided struct{ both, ours, theirs []Item }

func divide(rnd *rand.Rand, both, ours, theirs, crowd int) (d divided) {
	all := random(rnd, both+ours+theirs, crowd)
	return divided{all[:both], all[both : both+ours], all[both+ours:]}
}

func packed(parts ...[]Item) Packed {
	return Pack(slices.Concat(parts...))
}

// goNostr is the other side.
func goNostr(frame int, items Packed) *negentropy.Negentropy {
	v := vector.New()
	for _, i := range items {
		v.Insert(i.CreatedAt, hex.EncodeToString(i.ID[:]))
	}
	v.Seal()
	return negentropy.New(v, frame)
}

func ids(items []Item) []string {
	var out []string
	for _, i := range items {
		out = append(out, hex.EncodeToString(i.ID[:]))
	}
	slices.Sort(out)
	return out
}

// each runs a test for every division and some limits of our side.
func each(t *testing.T, run func(t *testing.T, c divided, limits Limits)) {
	t.Parallel()
	for n, s := range [][4]int{
		{0, 0, 0, 1}, {1, 0, 0, 1}, {0, 1, 0, 1}, {0, 0, 1, 1}, {0, 100, 0, 3}, {0, 0, 100, 3}, {31, 1, 0, 1}, {32, 0, 1, 40},
		{1_200, 0, 0, 3}, {1_200, 10, 10, 3}, {1_000, 10, 10, 20_000}, {0, 400, 0, 3}, {0, 0, 400, 3}, {100, 100, 100, 100},
	} {
		for _, limits := range []Limits{
			DefaultLimits, {Frame: LeastFrame, Ranges: 100, Marks: 64}, {Frame: DefaultFrame, Ranges: 20, Marks: 16},
		} {
			t.Run(fmt.Sprint(s, limits), func(t *testing.T) {
				t.Parallel()
				run(t, divide(rand.New(rand.NewPCG(7, uint64(n))), s[0], s[1], s[2], s[3]), limits)
			})
		}
	}
}

const mostRounds = 5_000

// TestRespond lets go-nostr ask. It must learn exactly what it lacks and what we lack.
func TestRespond(t *testing.T) {
	each(t, func(t *testing.T, c divided, limits Limits) {
		ours := packed(c.both, c.ours)
		asking := goNostr(1<<20, packed(c.both, c.theirs))
		var needs, haves []string
		var hearing sync.WaitGroup
		hear := func(from chan string, to *[]string) {
			hearing.Go(func() {
				for id := range from {
					*to = append(*to, id)
				}
			})
		}
		hear(asking.HaveNots, &needs)
		hear(asking.Haves, &haves)
		message := asking.Start()
		for rounds := 0; message != ""; rounds++ {
			frame, err := hex.DecodeString(message)
			must(t, err)
			answer, err := Respond(t.Context(), ours, frame, limits)
			must(t, err)
			if rounds == mostRounds || len(answer) > limits.Frame {
				t.Fatalf("no end, or an answer of %d bytes", len(answer))
			}
			message, err = asking.Reconcile(hex.EncodeToString(answer))
			must(t, err)
		}
		hearing.Wait()
		same(t, "needs", needs, ids(c.ours))
		same(t, "has", haves, ids(c.theirs))
	})
}

// TestContinue asks go-nostr.
func TestContinue(t *testing.T) {
	each(t, func(t *testing.T, c divided, limits Limits) {
		ours, answering := packed(c.both, c.ours), goNostr(60_000, packed(c.both, c.theirs))
		got, shown, err := ask(t.Context(), ours, limits, func(message []byte) ([]byte, error) {
			answer, err := answering.Reconcile(hex.EncodeToString(message))
			must(t, err)
			return hex.DecodeString(answer)
		})
		must(t, err)
		lacks := lacking(got, ours)
		same(t, "lacks", lacks, ids(c.theirs))
		if alone := int(shown.Listed) - (len(got) - len(lacks)); alone != len(c.ours) {
			t.Errorf("%d events are said to be here alone, want %d", alone, len(c.ours))
		}
		if oldest := packed(c.both); shown.Oldest != 0 && shown.Oldest < oldest[0].CreatedAt {
			t.Errorf("the other side is said to have an event of %d, its oldest is of %d", shown.Oldest, oldest[0].CreatedAt)
		}
	})
}

// ask runs a session of the asking side to its end, and returns what it was told, and how many
// of its own were in the ranges that were listed.
func ask(
	ctx context.Context, set Set, limits Limits, other func([]byte) ([]byte, error),
) (told [][32]byte, shown Shown, err error) {
	message, err := Start(ctx, set, limits)
	for rounds := 0; err == nil && message != nil; rounds++ {
		if rounds == mostRounds || len(message) > limits.Frame {
			return nil, Shown{}, fmt.Errorf("no end, or a message of %d bytes", len(message))
		}
		var answer []byte
		if answer, err = other(message); err != nil {
			return nil, Shown{}, err
		}
		var now Shown
		message, now, err = Continue(ctx, set, answer, rounds == 0, limits, func(id [32]byte) error { told = append(told, id); return nil })
		if shown.Listed += now.Listed; now.Oldest != 0 {
			shown.has(Item{CreatedAt: now.Oldest})
		}
	}
	return told, shown, err
}

func lacking(told [][32]byte, ours Packed) (lacks []string) {
	for _, id := range told {
		if !slices.ContainsFunc(ours, func(i Item) bool { return i.ID == id }) {
			lacks = append(lacks, hex.EncodeToString(id[:]))
		}
	}
	return lacks
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("%s %d ids, want %d: %.3q… %.3q…", what, len(got), len(want), got, want)
	}
}

// shifting is a set that becomes another one with every call.
type shifting struct {
	Set
	change func() Set
}

func (s *shifting) Sum(ctx context.Context, r Range) (Sum, error) {
	s.Set = s.change()
	return s.Set.Sum(ctx, r)
}

func (s *shifting) Items(ctx context.Context, r Range) ([]Item, error) {
	s.Set = s.change()
	return s.Set.Items(ctx, r)
}

// TestSetsThatChange lets events come and go on both sides between any two looks at the sets. What
// stays must be told as if nothing else had happened.
func TestSetsThatChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		c := divide(rnd, rnd.IntN(1_000), rnd.IntN(100), rnd.IntN(100), 1+rnd.IntN(50))
		restless := random(rnd, 20, 2)
		moving := func(steady Packed) Set {
			return &shifting{change: func() Set {
				return packed(steady, restless[rnd.IntN(len(restless)):])
			}}
		}
		ours := packed(c.both, c.ours)
		answering := moving(packed(c.both, c.theirs))
		limits := Limits{Frame: LeastFrame + rnd.IntN(20_000), Ranges: 1 + rnd.IntN(200), Marks: 16 + rnd.IntN(100)}
		told, _, err := ask(t.Context(), moving(ours), limits, func(message []byte) ([]byte, error) {
			return Respond(t.Context(), answering, message, limits)
		})
		must(t, err)
		extra := ids(restless)
		lacks := slices.DeleteFunc(lacking(told, ours), func(id string) bool { _, found := slices.BinarySearch(extra, id); return found })
		same(t, fmt.Sprintf("seed %d: lacks", seed), lacks, ids(c.theirs))
	}
}

// TestHostileMessages are refused, or answered without more work than they are worth.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	set := packed(random(rand.New(rand.NewPCG(1, 1)), 1000, 3))
	// Numbers are hex digits. "ff*9" is one that comes 9 times; 0000 is the bound at the end of time.
	read := func(text string) (message []byte) {
		for part := range strings.FieldsSeq(text) {
			digits, times, _ := strings.Cut(part, "*")
			count, _ := strconv.Atoi(cmp.Or(times, "1"))
			b, err := hex.DecodeString(digits)
			must(t, err)
			message = append(message, bytes.Repeat(b, count)...)
		}
		return message
	}
	// Without an answer it is refused.
	for _, c := range fixture.Rows(`
		nothing                |                                  |
		a later version        | 62 010203                        | 61
		an earlier version     | 60                               | 61
		no version             | 71                               |
		no range               | 61                               | 61
		skip                   | 61 0000 00                       | 61
		cut off bound          | 61 80                            |
		cut off mode           | 61 0000                          |
		unknown mode           | 61 0000 03                       |
		cut off fingerprint    | 61 0000 01 010203                |
		long id of a bound     | 61 01 21 00*40                   |
		endless number         | 61 ff*1000                       |
		number beyond 64 bit   | 61 83*9 7f 0000                  |
		ids that are not there | 61 0000 02 81 ff*7 7f            |
		descending bounds      | 61 0a0109 00 0101 08 00          |
		ranges after the end   | 61 0000 00 05 00 00              |
		times that overflow    | 61 ff*8 7f 0000 ff*8 7f 0000     |`) {
		want := read(c[2])
		got, err := Respond(t.Context(), set, read(c[1]), DefaultLimits)
		if want == nil && !errors.Is(err, ErrMessage) || want != nil && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("%s: %x, %v; want %x", c[0], got, err, want)
		}
	}
	looks := 0
	counting := &shifting{change: func() Set { looks++; return set }}
	fingerprints := append([]byte{0x61}, bytes.Repeat(append([]byte{2, 0, 1}, make([]byte, 16)...), 20_000)...)
	answer, err := Respond(t.Context(), counting, fingerprints, DefaultLimits)
	if err != nil || len(answer) > DefaultFrame || looks > 2200 {
		t.Errorf("%d bytes, %d looks at the set, %v", len(answer), looks, err)
	}
}

// FuzzRespond gives strangers' messages to both sides: no panic, a bounded answer, and one that the
// other side can read.
func FuzzRespond(f *testing.F) {
	items := random(rand.New(rand.NewPCG(3, 1)), 500, 5)
	for i := range items {
		items[i].CreatedAt -= 1_700_000_000
	}
	set := Pack(items)
	first, err := Start(context.Background(), set[:300], DefaultLimits)
	must(f, err)
	f.Add(first)
	f.Add([]byte{0x61, 0, 0, 2, 0})
	f.Add(append([]byte{0x61, 50, 1, 0x7f, 1}, make([]byte, 16)...))
	limits := Limits{Frame: LeastFrame, Ranges: 50, Marks: 64}
	f.Fuzz(func(t *testing.T, message []byte) {
		answer, err := Respond(t.Context(), set, message, limits)
		if err == nil {
			if len(answer) > limits.Frame {
				t.Errorf("an answer of %d bytes", len(answer))
			}
			if _, _, err := Continue(t.Context(), set, answer, false, limits, func([32]byte) error { return nil }); err != nil {
				t.Errorf("the answer cannot be read: %v", err)
			}
		} else if !errors.Is(err, ErrMessage) {
			t.Error(err)
		}
		next, _, err := Continue(t.Context(), set, message, false, limits, func([32]byte) error { return nil })
		if err == nil && len(next) > limits.Frame {
			t.Errorf("a message of %d bytes", len(next))
		}
	})
}

// TestAnswersFit: a relay that bounds nothing has forty thousand events of which some are known
// here. Its answers fit the limit all the same, because of what it is asked.
func TestAnswersFit(t *testing.T) {
	t.Parallel()
	const most = 600 << 10
	for _, known := range []int{1, 31, 1_000, 20_000} {
		rnd := rand.New(rand.NewPCG(3, uint64(known)))
		theirs := random(rnd, 40_000, 3)
		ours, whole := packed(theirs[:known]), packed(theirs)
		limits, found := LimitsFor(2*most), map[[32]byte]bool{}
		limits.Frame, limits.Ranges = DefaultFrame, 1<<15
		message, err := Start(t.Context(), ours, limits)
		must(t, err)
		rounds, largest := 0, 0
		for ; message != nil; rounds++ {
			answer, err := Respond(t.Context(), whole, message, Limits{Frame: 16 << 20, Ranges: 1 << 20, Marks: 1 << 20})
			must(t, err)
			largest = max(largest, len(answer))
			message, _, err = Continue(t.Context(), ours, answer, false, limits, func(id [32]byte) error { found[id] = true; return nil })
			must(t, err)
			if rounds > 256 {
				t.Fatal("no end")
			}
		}
		for _, i := range theirs[known:] {
			if !found[i.ID] {
				t.Fatalf("%d known: an event is not found", known)
			}
		}
		if largest > most {
			t.Errorf("%d known: an answer has %d bytes", known, largest)
		}
		t.Logf("%d known: %d rounds, at most %d bytes", known, rounds, largest)
	}
}

// TestSplit: parts of an answer say together what the answer says.
func TestSplit(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(4, 4))
	theirs := random(rnd, 40_000, 3)
	ours := packed(theirs[:20_000], random(rnd, 100, 3))
	w := newWriter() // a range that is listed for a fingerprint, of any size, and one that is split
	whole := packed(theirs)
	w.ids(Between(whole[29_999], whole[30_000]), whole[:30_000])
	d := dialogue{set: whole, limits: DefaultLimits, out: w}
	must(t, d.split(t.Context(), Range{Between(whole[29_999], whole[30_000]), End}))
	hear := func(message []byte) (ids []string, next []byte) {
		next, _, err := Continue(t.Context(), ours, message, false, DefaultLimits, func(id [32]byte) error {
			ids = append(ids, hex.EncodeToString(id[:]))
			return nil
		})
		must(t, err)
		return ids, next
	}
	parts, err := Split(w.out, 100<<10)
	must(t, err)
	var ids []string
	var said []byte
	for _, part := range parts {
		if len(part) > 100<<10 {
			t.Errorf("a part has %d bytes", len(part))
		}
		some, next := hear(part)
		if ids = append(ids, some...); next != nil {
			said = next
		}
	}
	want, next := hear(w.out)
	if len(parts) < 10 || !slices.Equal(ids, want) || !bytes.Equal(said, next) {
		t.Errorf("%d parts tell %d ids, want %d; %x, want %x", len(parts), len(ids), len(want), said, next)
	}
	for n := range 200 {
		broken := slices.Clone(w.out)
		broken[rnd.IntN(len(broken))] ^= byte(1 + n)
		if parts, err := Split(broken, 100<<10); err == nil {
			for _, part := range parts {
				if len(part) > 100<<10 {
					t.Errorf("a part of a broken message has %d bytes", len(part))
				}
			}
		}
	}
}
