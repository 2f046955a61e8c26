package eventdb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tendril.dev/lib/nostr"
)

func made(n int, kind int, created nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	return &nostr.Event{ID: fmt.Sprintf("%064x", n), PubKey: strings.Repeat("2", 64), Kind: kind, CreatedAt: created, Tags: tags, Sig: strings.Repeat("0", 128)}
}

// apply applies events as the next ones of the log.
func apply(t testing.TB, db *DB, events ...*nostr.Event) {
	t.Helper()
	var recs []Record
	for n, ev := range events {
		recs = append(recs, Record{Seq: db.Seq() + 1 + uint64(n), Event: ev})
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
}

// memory is an index in memory with some events, until the test ends.
func memory(t testing.TB, o Options, events ...*nostr.Event) *DB {
	t.Helper()
	db := open(t, "", o)
	t.Cleanup(func() { closeDB(t, db) })
	apply(t, db, events...)
	return db
}

// viewOf is a view until the test ends.
func viewOf(t testing.TB, db *DB) *View {
	v := db.View()
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// has reports whether an event can be read.
func has(v *View, id string) (bool, error) {
	_, err := v.Kind(id)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// count is how many events a filter is answered with.
func count(t testing.TB, v *View, f nostr.Filter) (n int) {
	t.Helper()
	for _, err := range v.IDs(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
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
				db := memory(t, Options{Now: func() nostr.Timestamp { return 100 }})
				if together {
					apply(t, db, tc.events...)
				} else {
					for _, ev := range tc.events {
						apply(t, db, ev)
					}
				}
				v := viewOf(t, db)
				if n := count(t, v, nostr.Filter{}); n != len(tc.want) {
					t.Fatalf("%d events are kept, want %d", n, len(tc.want))
				}
				for _, n := range tc.want {
					if is, err := has(v, fmt.Sprintf("%064x", n)); err != nil || !is {
						t.Fatalf("event %d is missing: %v", n, err)
					}
				}
			})
		}
	}
}

// TestCrash stops the machine in the middle of everything: what was not synced is lost. What is
// found is the state of one sequence, whole.
func TestCrash(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	db := open(t, "index", Options{files: fs, memTable: 4 << 20})
	defer closeDB(t, db)
	rnd := rand.New(rand.NewPCG(1, 1))
	text, reached := strings.Repeat("x", 7_500), map[uint64]bool{}
	for n := 1; n <= 1500; n++ {
		ev := made(n, 1, nostr.Timestamp(n), nostr.Tag{"t", "x"})
		ev.Content = text
		apply(t, db, ev)
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
	db := open(t, t.TempDir())
	apply(t, db, made(1, 1, 1))
	early, id := db.View(), made(1, 1, 1).ID
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for closed := false; !closed; {
				v := db.View()
				there, err := has(v, id)
				if closed = errors.Is(err, ErrClosed); !there && !closed {
					t.Errorf("a view beside Close: %v", err)
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	closeDB(t, db)
	if n := count(t, early, nostr.Filter{}); n != 1 {
		t.Errorf("an open view counts %d after Close", n)
	}
	if err := early.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	late := viewOf(t, db)
	_, err := late.Event(id)
	_, holderErr := late.Replaceable(0, strings.Repeat("2", 64), "")
	_, deletedErr := late.Deleted(made(1, 1, 1))
	_, hasErr := db.HasEach([][32]byte{{}})
	for _, err := range []error{err, holderErr, deletedErr, hasErr, db.Apply([]Record{{Seq: 2, Event: made(2, 1, 1)}}), db.Close()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestViewStaysWhereItWasTaken(t *testing.T) {
	t.Parallel()
	first := made(1, 1, 10)
	db := memory(t, Options{}, first)
	v := viewOf(t, db)
	apply(t, db, made(2, 1, 11), made(3, 5, 12, nostr.Tag{"e", first.ID}))
	if n := count(t, v, nostr.Filter{}); n != 1 || v.Seq() != 1 {
		t.Fatalf("the old view counts %d at %d; want 1 at 1", n, v.Seq())
	}
	if is, err := has(v, first.ID); err != nil || !is {
		t.Fatalf("the old view lost an event that was deleted later: %v", err)
	}
}

// TestSubscribersHearWhatWasStored: in order, when it can be seen, and nothing that left with the
// change that brought it.
func TestSubscribersHearWhatWasStored(t *testing.T) {
	t.Parallel()
	w, m := newWorld(rand.New(rand.NewPCG(5, 5))), &model{}
	db := memory(t, Options{Now: func() nostr.Timestamp { return 0 }})
	var heard, want []string
	db.Subscribe(func(recs []Record) {
		v := db.View()
		defer v.Close()
		for _, r := range recs {
			heard = append(heard, r.Event.ID)
			if is, err := has(v, r.Event.ID); err != nil || !is {
				t.Errorf("heard of %d before it could be seen: %v", r.Seq, err)
			}
		}
	})
	for range 300 {
		ev := w.event()
		if m.apply(ev) {
			want = append(want, ev.ID)
		}
		apply(t, db, ev)
	}
	old, replacement := made(1, 30617, 1, nostr.Tag{"d", "x"}), made(2, 30617, 2, nostr.Tag{"d", "x"})
	apply(t, db, old, replacement)
	if want = append(want, replacement.ID); !slices.Equal(heard, want) {
		t.Fatalf("heard %q, want %q", heard, want)
	}
}

func TestApplyRefusesBadRecordsWhole(t *testing.T) {
	t.Parallel()
	good := made(1, 1, 1)
	for name, recs := range map[string][]Record{
		"no event":     {{Seq: 1, Event: good}, {Seq: 2}},
		"bad id":       {{Seq: 1, Event: good}, {Seq: 2, Event: &nostr.Event{ID: "xyz", PubKey: good.PubKey}}},
		"bad pubkey":   {{Seq: 1, Event: good}, {Seq: 2, Event: &nostr.Event{ID: good.ID, PubKey: "0"}}},
		"not in order": {{Seq: 2, Event: good}, {Seq: 1, Event: good}},
	} {
		db := memory(t, Options{})
		if err := db.Apply(recs); err == nil {
			t.Errorf("%s: applied", name)
		}
		if n := count(t, viewOf(t, db), nostr.Filter{}); n != 0 || db.Seq() != 0 {
			t.Errorf("%s: %d events at %d; want none of them", name, n, db.Seq())
		}
	}
}

func TestDeletionsDisrespected(t *testing.T) {
	t.Parallel()
	ev := made(1, 1, 1)
	v := viewOf(t, memory(t, Options{KeepDeleted: true}, ev, made(2, 5, 2, nostr.Tag{"e", ev.ID})))
	if n := count(t, v, nostr.Filter{}); n != 2 {
		t.Fatalf("%d events; want both", n)
	}
	if deleted, err := v.Deleted(ev); err != nil || deleted {
		t.Fatalf("deleted: %v, %v", deleted, err)
	}
}

// TestWithinBoundsWhatAQueryCosts: filters that match next to nothing end soon, and those of honest
// clients do not notice.
func TestWithinBoundsWhatAQueryCosts(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for n := range 20_000 {
		events = append(events, made(n, 1+n%2, nostr.Timestamp(n), nostr.Tag{"t", "popular"}, nostr.Tag{"long", "x"}))
	}
	events = append(events, made(30_000, 7, 5, nostr.Tag{"t", "popular"}, nostr.Tag{"p", "rare"}))
	v := viewOf(t, memory(t, Options{}, events...))
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
		"a popular tag, other authors":       {nostr.Filter{Authors: strangers[:10], Tags: nostr.TagMap{"t": {"popular"}}, Limit: 1}, 0, false},
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
		n := 0
		var err error
		for _, err = range v.Within(steps).IDs(t.Context(), tc.filter) {
			if err == nil {
				n++
			}
		}
		if errors.Is(err, ErrTooBroad) != tc.broad || !tc.broad && err != nil || n != tc.want {
			t.Errorf("%s: %d answers, %v; want %d, too broad: %v", name, n, err, tc.want, tc.broad)
		}
	}
	if n := count(t, v, nostr.Filter{}); n != len(events) {
		t.Errorf("the view itself counts %d", n)
	}
}

func at(t nostr.Timestamp) *nostr.Timestamp { return &t }

func manyIDs(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%064x", 100_000+i))
	}
	return ids
}

// TestLargeEventsCountMore: an event counts what it takes to read it, whether it is an answer or
// only looked at.
func TestLargeEventsCountMore(t *testing.T) {
	t.Parallel()
	const events, size = 20, 100_000
	var large []*nostr.Event
	for n := range events {
		ev := made(n+1, 1, nostr.Timestamp(n))
		ev.Content = strings.Repeat("x", size)
		large = append(large, ev)
	}
	v := viewOf(t, memory(t, Options{}, large...))
	unindexed := nostr.Filter{Tags: nostr.TagMap{"long": {"x"}}}
	const read, decoded = events * size / readPerStep, events * size / decodedPerStep
	s := v.scanner(t.Context(), unindexed)
	if err := s.scan(nil); err != nil || s.steps < decoded || s.steps > 2*decoded {
		t.Errorf("%d steps to look at %d MB, %v; want %d at least", s.steps, events*size/1_000_000, err, decoded)
	}
	asked := func(v *View, decode bool) (n int, last error) {
		next := func(err error) bool {
			if last = err; err == nil {
				n++
			}
			return err == nil
		}
		if decode {
			v.Query(t.Context(), nostr.Filter{})(func(_ *nostr.Event, err error) bool { return next(err) })
		} else {
			v.QueryRaw(t.Context(), nostr.Filter{})(func(_ Raw, err error) bool { return next(err) })
		}
		return n, last
	}
	for least, decode := range map[int]bool{read: false, decoded: true} {
		if n, err := asked(v.Within(least), decode); !errors.Is(err, ErrTooBroad) || n == 0 {
			t.Errorf("within %d steps, decoded %v: %d, %v; want some, then too broad", least, decode, n, err)
		}
		if n, err := asked(v.Within(2*least), decode); err != nil || n != events {
			t.Errorf("within %d steps, decoded %v: %d, %v; want all", 2*least, decode, n, err)
		}
	}
}

// TestLongQueries: one ends with its context, and calls the function of its view every few hundred
// steps, whose error ends it too.
func TestLongQueries(t *testing.T) {
	t.Parallel()
	var events []*nostr.Event
	for n := range 5000 {
		events = append(events, made(n, 1, nostr.Timestamp(n), nostr.Tag{"t", "x"}))
	}
	v := viewOf(t, memory(t, Options{}, events...))
	ask := func(ctx context.Context, v *View, each func()) (n int, last error) {
		for _, err := range v.IDs(ctx, nostr.Filter{Tags: nostr.TagMap{"t": {"x"}}}) {
			if last = err; err == nil {
				n++
				each()
			}
		}
		return n, last
	}
	ctx, cancel := context.WithCancel(t.Context())
	if n, err := ask(ctx, v, cancel); !errors.Is(err, context.Canceled) || n > 1000 {
		t.Errorf("ended with %v after %d events", err, n)
	}
	calls, enough := 0, errors.New("enough")
	yielding := v.Yielding(func(context.Context) error {
		if calls++; calls > 4 {
			return enough
		}
		return nil
	})
	if n, err := ask(t.Context(), yielding, func() {}); !errors.Is(err, enough) || n == 0 || n > 2000 {
		t.Errorf("%d calls in %d steps, ended with %v", calls, n, err)
	}
}
