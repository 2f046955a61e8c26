package eventdb

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tendril.dev/lib/nostr"
)

func made(n int, kind int, created nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	return &nostr.Event{ID: fmt.Sprintf("%064x", n), PubKey: strings.Repeat("2", 64), Kind: kind, CreatedAt: created, Tags: tags, Sig: strings.Repeat("0", 128)}
}

// TestWhatIsKept reads the rules of NIP-01, 09 and 40 one by one; the random test reads them all at
// once.
func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	d, me := nostr.Tag{"d", "x"}, strings.Repeat("2", 64)
	address := nostr.Tag{"a", "30617:" + me + ":x"}
	e := func(n int) nostr.Tag { return nostr.Tag{"e", fmt.Sprintf("%064x", n)} }
	for name, tc := range map[string]struct {
		events []*nostr.Event
		want   []int // ids
	}{
		"newer replaces":                      {[]*nostr.Event{made(1, 30617, 5, d), made(2, 30617, 6, d)}, []int{2}},
		"older does not":                      {[]*nostr.Event{made(1, 30617, 6, d), made(2, 30617, 5, d)}, []int{1}},
		"at equal time the lower id stays":    {[]*nostr.Event{made(1, 30617, 5, d), made(2, 30617, 5, d)}, []int{1}},
		"at equal time the lower id replaces": {[]*nostr.Event{made(2, 30617, 5, d), made(1, 30617, 5, d)}, []int{1}},
		"no d is the empty d":                 {[]*nostr.Event{made(1, 30617, 5), made(2, 30617, 6, nostr.Tag{"d", ""})}, []int{2}},
		"replaceable kinds know no d":         {[]*nostr.Event{made(1, 10317, 5, d), made(2, 10317, 6)}, []int{2}},
		"ephemeral kinds are not kept":        {[]*nostr.Event{made(1, 20000, 5)}, nil},
		"a deletion up to its own time":       {[]*nostr.Event{made(1, 30617, 5, d), made(9, 5, 5, address)}, []int{9}},
		"a deletion not beyond its time":      {[]*nostr.Event{made(1, 30617, 6, d), made(9, 5, 5, address)}, []int{1, 9}},
		"a deletion before its event":         {[]*nostr.Event{made(9, 5, 5, address), made(1, 30617, 5, d), made(2, 30617, 6, d)}, []int{2, 9}},
		"a deletion of what is no address": {[]*nostr.Event{made(1, 30617, 5, d), made(2, 10317, 5), made(3, 0, 5), made(9, 5, 6,
			nostr.Tag{"a", "030617:" + me + ":x"}, nostr.Tag{"a", "10317:" + me + ":junk"}, nostr.Tag{"a", "0:" + me})}, []int{1, 2, 3, 9}},
		"a deletion of a replaceable":            {[]*nostr.Event{made(2, 10317, 5), made(9, 5, 6, nostr.Tag{"a", "10317:" + me + ":"})}, []int{9}},
		"a deletion at the beginning of time":    {[]*nostr.Event{made(9, 5, 0, address), made(1, 30617, 0, d)}, []int{9}},
		"an older deletion does not weaken":      {[]*nostr.Event{made(9, 5, 7, address), made(8, 5, 3, address), made(1, 30617, 5, d)}, []int{8, 9}},
		"a deletion by id before its event":      {[]*nostr.Event{made(9, 5, 0, e(1)), made(1, 1, 99)}, []int{9}},
		"a deletion of a deletion":               {[]*nostr.Event{made(8, 5, 1, e(1)), made(9, 5, 2, e(8)), made(1, 1, 0)}, []int{8, 9}},
		"after a deletion by id an older may":    {[]*nostr.Event{made(2, 30617, 6, d), made(9, 5, 7, e(2)), made(1, 30617, 5, d)}, []int{1, 9}},
		"what has expired keeps older ones away": {[]*nostr.Event{made(2, 30617, 6, d, nostr.Tag{"expiration", "50"}), made(1, 30617, 5, d)}, nil},
		"until its author deletes it":            {[]*nostr.Event{made(2, 30617, 6, d, nostr.Tag{"expiration", "50"}), made(9, 5, 7, e(2)), made(1, 30617, 5, d)}, []int{1, 9}},
	} {
		for _, together := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/together=%v", name, together), func(t *testing.T) {
				t.Parallel()
				db, err := Open("", Options{Now: func() nostr.Timestamp { return 100 }})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				var recs []Record
				for i, ev := range tc.events {
					recs = append(recs, Record{Seq: uint64(i + 1), Event: ev})
				}
				for len(recs) > 0 {
					n := 1
					if together {
						n = len(recs)
					}
					if err := db.Apply(recs[:n]); err != nil {
						t.Fatal(err)
					}
					recs = recs[n:]
				}
				kept(t, db, tc.want...)
			})
		}
	}
}

func kept(t *testing.T, db *DB, want ...int) {
	t.Helper()
	v := db.View()
	defer v.Close()
	if n, err := countOf(t, v, nostr.Filter{}); err != nil || n != len(want) {
		t.Fatalf("%d events kept, %v; want %d", n, err, len(want))
	}
	for _, n := range want {
		if has, err := v.Has(fmt.Sprintf("%064x", n)); err != nil || !has {
			t.Fatalf("event %d is missing: %v", n, err)
		}
	}
}

// TestCrash stops the machine in the middle of everything: what was not synced is lost. What is
// found is the state of one sequence, whole.
func TestCrash(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	db, err := Open("index", Options{files: fs, memTable: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rnd := rand.New(rand.NewPCG(1, 1))
	text, reached := strings.Repeat("x", 7_500), map[uint64]bool{}
	for n := 1; n <= 1500; n++ {
		ev := made(n, 1, nostr.Timestamp(n), nostr.Tag{"t", "x"})
		ev.Content = text
		if err := db.Apply([]Record{{Seq: uint64(n), Event: ev}}); err != nil {
			t.Fatal(err)
		}
		if n%250 != 0 {
			continue
		}
		after, err := Open("index", Options{files: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(100), RNG: rnd})})
		if err != nil {
			t.Fatalf("open after a crash at %d: %v", n, err)
		}
		seq := after.Seq()
		reached[seq] = true
		v := after.View()
		for _, f := range []nostr.Filter{{}, {Kinds: []int{1}}, {Tags: nostr.TagMap{"t": {"x"}}}, {Authors: []string{strings.Repeat("2", 64)}}} {
			found := uint64(0)
			for ev, err := range v.Query(t.Context(), f) {
				if err != nil || ev.ID != fmt.Sprintf("%064x", seq-found) {
					t.Fatalf("after a crash at %d: %v, %v; want event %d", n, ev, err, seq-found)
				}
				found++
			}
			if found != seq {
				t.Errorf("after a crash at %d: %s finds %d, want %d", n, f.String(), found, seq)
			}
		}
		if err := errors.Join(v.Close(), after.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if len(reached) < 2 {
		t.Fatalf("the crashes left the index at %v: too few to mean anything", reached)
	}
}

func TestClosingUnderOpenViews(t *testing.T) {
	t.Parallel()
	db, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Apply([]Record{{Seq: 1, Event: made(1, 1, 1)}}); err != nil {
		t.Fatal(err)
	}
	early := db.View()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				v := db.View()
				n, err := countOf(t, v, nostr.Filter{})
				if err == nil && n != 1 || err != nil && !errors.Is(err, ErrClosed) {
					t.Errorf("a view beside Close counts %d, %v", n, err)
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
				if errors.Is(err, ErrClosed) {
					return
				}
			}
		})
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := countOf(t, early, nostr.Filter{}); err != nil || n != 1 {
		t.Errorf("an open view counts %d after Close, %v", n, err)
	}
	if err := early.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	late := db.View()
	_, err = late.Event(made(1, 1, 1).ID)
	_, hasErr := late.Has(made(1, 1, 1).ID)
	_, holderErr := late.Replaceable(0, strings.Repeat("2", 64), "")
	_, deletedErr := late.Deleted(made(1, 1, 1))
	for _, err := range []error{err, hasErr, holderErr, deletedErr, db.Apply([]Record{{Seq: 2, Event: made(2, 1, 1)}}), db.Close()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if err := late.Close(); err != nil {
		t.Error(err)
	}
}

// TestWithinBoundsWhatAQueryCosts: filters that match next to nothing end soon, and those of honest
// clients do not notice.
func TestWithinBoundsWhatAQueryCosts(t *testing.T) {
	t.Parallel()
	db, err := Open("", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var recs []Record
	for n := range 20_000 {
		ev := made(n, 1+n%2, nostr.Timestamp(n), nostr.Tag{"t", "popular"}, nostr.Tag{"long", "x"})
		recs = append(recs, Record{Seq: uint64(n + 1), Event: ev})
	}
	recs = append(recs, Record{Seq: 30_000, Event: made(30_000, 7, 5, nostr.Tag{"t", "popular"}, nostr.Tag{"p", "rare"})})
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
	v := db.View()
	defer v.Close()
	me := strings.Repeat("2", 64)
	strangers := make([]string, 100)
	for n := range strangers {
		strangers[n] = fmt.Sprintf("%064x", n)
	}
	const steps = 1000
	for name, tc := range map[string]struct {
		filter nostr.Filter
		want   int
		broad  bool
	}{
		"newest of a tag":                    {nostr.Filter{Tags: nostr.TagMap{"t": {"popular"}}, Limit: 500}, 500, false},
		"a rare kind of a prolific author":   {nostr.Filter{Authors: []string{me}, Kinds: []int{7}, Limit: 1}, 0, true},
		"a rare tag beside a popular one":    {nostr.Filter{Tags: nostr.TagMap{"t": {"popular"}, "p": {"rare"}}, Limit: 1}, 1, false},
		"a popular tag of nobody":            {nostr.Filter{Authors: strangers[:10], Tags: nostr.TagMap{"t": {"popular"}}, Limit: 1}, 0, false},
		"many strangers":                     {nostr.Filter{Authors: strangers, Kinds: []int{1, 2, 3}, Limit: 1}, 0, false},
		"a popular tag of many strangers":    {nostr.Filter{Authors: strangers, Tags: nostr.TagMap{"t": {"popular"}}, Limit: 1}, 0, true},
		"a tag that has no index":            {nostr.Filter{Tags: nostr.TagMap{"long": {"y"}}, Limit: 1}, 0, true},
		"everything":                         {nostr.Filter{}, steps, true},
		"a hundred authors, one of them me":  {nostr.Filter{Authors: append(strangers[:99:99], me), Kinds: []int{1, 2}, Limit: 100}, 100, false},
		"a hundred authors without a limit":  {nostr.Filter{Authors: append(strangers[:99:99], me)}, 0, true},
		"ids, as many as may be named":       {nostr.Filter{IDs: strangers[:40], Limit: 1}, 1, false},
		"more ids than may be looked for":    {nostr.Filter{IDs: append(strangers, manyIDs(1000)...)}, 0, true},
		"an inverted time":                   {nostr.Filter{Since: at(10), Until: at(9)}, 0, false},
		"one second":                         {nostr.Filter{Since: at(10), Until: at(10)}, 1, false},
		"a second that two events have":      {nostr.Filter{Since: at(5), Until: at(5)}, 2, false},
		"a limit of none":                    {nostr.Filter{LimitZero: true}, 0, false},
		"ids that are prefixes find nothing": {nostr.Filter{IDs: []string{"00", strings.Repeat("0", 63)}}, 0, false},
	} {
		n, err := countOf(t, v.Within(steps), tc.filter)
		if errors.Is(err, ErrTooBroad) != tc.broad || !tc.broad && err != nil || n != tc.want {
			t.Errorf("%s: %d answers, %v; want %d, too broad: %v", name, n, err, tc.want, tc.broad)
		}
	}
	if n, err := countOf(t, v, nostr.Filter{}); err != nil || n != len(recs) {
		t.Errorf("the view itself counts %d, %v", n, err)
	}
}

func at(t nostr.Timestamp) *nostr.Timestamp { return &t }

// countOf is how many events a filter is answered with.
func countOf(t testing.TB, v *View, f nostr.Filter) (n int, err error) {
	for _, err := range v.IDs(t.Context(), f) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func manyIDs(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%064x", 100_000+i))
	}
	return ids
}
