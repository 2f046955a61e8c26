package eventdb

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

type (
	Event     = nostr.Event
	Filter    = nostr.Filter
	Tag       = nostr.Tag
	TagMap    = nostr.TagMap
	Tags      = nostr.Tags
	Timestamp = nostr.Timestamp
)

var (
	quiet = slog.New(slog.DiscardHandler)
	me    = strings.Repeat("2", 64)
	zeros = strings.Repeat("0", 128) // a signature
)

var must = fixture.Must

func open(t testing.TB, dir string, opts ...Options) *DB {
	db, err := Open(dir, append(opts, Options{})[0])
	must(t, err)
	return db
}

func openBus(t testing.TB) *bus.Bus {
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

func made(n int, kind int, created Timestamp, tags ...Tag) *Event {
	return &Event{ID: fmt.Sprintf("%032x%032x", n, n), PubKey: me, Kind: kind, CreatedAt: created, Tags: tags, Sig: zeros}
}

func project(n int, d string, created Timestamp) *Event {
	return made(n, 30030, created, Tag{"d", d})
}

// notes are small events, those from one number to before another.
func notes(from, to int) (out []*Event) {
	for n := from; n < to; n++ {
		out = append(out, made(n, 1, Timestamp(1000+n)))
	}
	return out
}

func sized(ev *Event, size int) *Event {
	ev.Content = strings.Repeat("x", size)
	return ev
}

// apply applies events as the next ones of the log.
func apply(t testing.TB, db *DB, events ...*Event) {
	var recs []Record
	for n, ev := range events {
		recs = append(recs, Record{Seq: db.Seq() + 1 + uint64(n), Event: ev})
	}
	must(t, db.Apply(recs))
}

// memory is an index in memory with some events, until the test ends.
func memory(t testing.TB, o Options, events ...*Event) *DB {
	db := open(t, "", o)
	t.Cleanup(func() { must(t, db.Close()) })
	apply(t, db, events...)
	return db
}

// viewOf is a view until the test ends.
func viewOf(t testing.TB, db *DB) *View {
	v := db.View()
	t.Cleanup(func() { must(t, v.Close()) })
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

// drain gives all answers of a query, and the error that it ended with.
func drain[T any](all iter.Seq2[T, error]) (got []T, last error) {
	for answer, err := range all {
		if last = err; err == nil {
			got = append(got, answer)
		}
	}
	return got, last
}

// count is how many events a filter is answered with.
func count(t testing.TB, v *View, f Filter) int {
	t.Helper()
	got, err := drain(v.IDs(t.Context(), f))
	must(t, err)
	return len(got)
}

// holds checks that the index has exactly these events.
func holds(t testing.TB, db *DB, events ...*Event) {
	t.Helper()
	v := db.View()
	got, err := drain(v.IDs(t.Context(), Filter{}))
	must(t, err, v.Close())
	var want []Entry
	for _, ev := range events {
		e, err := EntryOf(ev)
		must(t, err)
		want = append(want, e)
	}
	slices.SortFunc(want, Entry.Compare)
	if !slices.Equal(want, got) {
		t.Fatalf("the index has %d events, want %d", len(got), len(want))
	}
}

// write appends events to the log as ingest does, and gives the log's head.
func write(t testing.TB, b *bus.Bus, events ...*Event) uint64 {
	var msgs []*nats.Msg
	for _, ev := range events {
		msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: nostr.Encode(ev)})
	}
	last, err := b.PublishBatch(t.Context(), msgs, nil)
	must(t, err)
	return last
}

// followed is an index in a folder that follows the log until stop is called, or the test ends.
func followed(t testing.TB, b *bus.Bus, dir string, log *slog.Logger) (db *DB, stop func()) {
	db = open(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Follow(ctx, b.JS, db, log) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, db.Close()); err != nil {
			t.Errorf("follow: %v", err)
		}
	})
	t.Cleanup(stop)
	return db, stop
}

func waitFor(t testing.TB, db *DB, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	must(t, db.WaitFor(ctx, seq))
}

// TestCrash stops the machine in the middle of everything: what was not synced is lost. What is
// found is the state of one sequence, whole.
func TestCrash(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	db := open(t, "index", Options{files: fs, memTable: 4 << 20})
	defer db.Close()
	rnd, reached := rand.New(rand.NewPCG(1, 1)), map[uint64]bool{}
	for n := 1; n <= 1500; n++ {
		apply(t, db, sized(made(n, 1, Timestamp(n), Tag{"t", "x"}), 7500))
		if n%250 != 0 {
			continue
		}
		after := open(t, "index", Options{files: fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(100), RNG: rnd})})
		seq, v := after.Seq(), after.View()
		reached[seq] = true
		for _, f := range []Filter{{}, {Kinds: []int{1}}, {Tags: TagMap{"t": {"x"}}}, {Authors: []string{me}}} {
			found := uint64(0)
			for ev, err := range v.Query(t.Context(), f) {
				if err != nil || ev.ID != made(int(seq-found), 1, 1).ID {
					t.Fatalf("after a crash at %d: %v, %v; want event %d", n, ev, err, seq-found)
				}
				found++
			}
			if found != seq {
				t.Errorf("after a crash at %d: %s finds %d, want %d", n, f.String(), found, seq)
			}
		}
		must(t, v.Close(), after.Close())
	}
	if len(reached) < 2 {
		t.Fatalf("the crashes left the index at %v: too few to mean anything", reached)
	}
}

// TestClosingUnderOpenViews: a view stays where it was taken, also beyond Close.
func TestClosingUnderOpenViews(t *testing.T) {
	t.Parallel()
	db, first := open(t, t.TempDir()), made(1, 1, 1)
	apply(t, db, first)
	early := db.View()
	apply(t, db, made(2, 1, 11), made(4, 1, 11), made(3, 5, 12, Tag{"e", made(2, 1, 11).ID}))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for closed := false; !closed; {
				v := db.View()
				there, err := has(v, first.ID)
				if closed = errors.Is(err, ErrClosed); !there && !closed || v.Close() != nil {
					t.Errorf("a view beside Close: %v", err)
				}
			}
		})
	}
	must(t, db.Close())
	if n := count(t, early, Filter{}); n != 1 || early.Seq() != 1 {
		t.Errorf("an open view counts %d at %d after Close", n, early.Seq())
	}
	must(t, early.Close())
	wg.Wait()
	late := viewOf(t, db)
	_, err := late.Event(first.ID)
	_, holderErr := late.Replaceable(0, me, "")
	_, deletedErr := late.Deleted(first)
	_, hasErr := db.HasEach([][32]byte{{}})
	for _, err := range []error{err, holderErr, deletedErr, hasErr, db.Apply([]Record{{Seq: 9, Event: made(9, 1, 1)}}), db.Close()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestApplyRefusesBadRecordsWhole(t *testing.T) {
	t.Parallel()
	good := made(1, 1, 1)
	for name, recs := range map[string][]Record{
		"no event":     {{Seq: 1, Event: good}, {Seq: 2}},
		"bad id":       {{Seq: 1, Event: good}, {Seq: 2, Event: &Event{ID: "xyz", PubKey: me}}},
		"not in order": {{Seq: 2, Event: good}, {Seq: 1, Event: good}},
	} {
		db := memory(t, Options{})
		if err := db.Apply(recs); err == nil || db.Seq() != 0 {
			t.Errorf("%s: %v at %d", name, err, db.Seq())
		}
		holds(t, db)
	}
}

func at(t Timestamp) *Timestamp { return &t }

// TestWithinBoundsWhatAQueryCosts: filters that match next to nothing end soon, and those of honest
// clients do not notice.
func TestWithinBoundsWhatAQueryCosts(t *testing.T) {
	t.Parallel()
	var events []*Event
	for n := range 4000 {
		events = append(events, made(n, 1+n%2, Timestamp(n), Tag{"t", "popular"}, Tag{"long", "x"}))
	}
	events = append(events, made(30_000, 7, 5, Tag{"t", "popular"}, Tag{"p", "rare"}))
	v := viewOf(t, memory(t, Options{}, events...))
	var ids []string
	for n := range 1100 {
		ids = append(ids, made(n, 1, 1).ID)
	}
	list := func(values ...string) string { return `["` + strings.Join(values, `","`) + `"]` }
	words := strings.NewReplacer("MANY-IDS", list(ids...), "STRANGERS", list(ids[:100]...), "TEN", list(ids[:10]...), "WITH-ME", list(append(ids[:99:99], me)...), "ME", list(me),
		"POPULAR", `"#t":["popular"]`, "ZEROS", zeros[:63])
	const steps = 1000
	for _, c := range fixture.Rows(`
		newest of a tag                    | {POPULAR,"limit":500}                        | 500  |
		a rare kind of a prolific author   | {"authors":ME,"kinds":[7],"limit":1}         | 0    | too broad
		a rare tag beside a popular one    | {POPULAR,"#p":["rare"],"limit":1}            | 1    |
		a popular tag, other authors       | {POPULAR,"authors":TEN,"limit":1}            | 0    |
		a popular tag of many strangers    | {POPULAR,"authors":STRANGERS,"limit":1}      | 0    | too broad
		a tag that has no index            | {"#long":["y"],"limit":1}                    | 0    | too broad
		everything                         | {}                                           | 1000 | too broad
		a hundred authors, one of them me  | {"authors":WITH-ME,"kinds":[1,2],"limit":100} | 100 |
		more ids than may be looked for    | {"ids":MANY-IDS}                             | 0    | too broad
		a second that two events have      | {"since":5,"until":5}                        | 2    |
		ids that are prefixes find nothing | {"ids":["00","ZEROS"]}                       | 0    |`) {
		var filter Filter
		must(t, filter.UnmarshalJSON([]byte(words.Replace(c[1]))))
		got, err := drain(v.Within(steps).IDs(t.Context(), filter))
		if broad := c[3] != ""; errors.Is(err, ErrTooBroad) != broad || !broad && err != nil || fmt.Sprint(len(got)) != c[2] {
			t.Errorf("%s: %d answers, %v; want %s, too broad: %v", c[0], len(got), err, c[2], broad)
		}
	}
}

// TestLargeEventsCountMore: an event counts what it takes to read it, whether it is an answer or
// only looked at.
func TestLargeEventsCountMore(t *testing.T) {
	t.Parallel()
	const events, size = 20, 100_000
	var large []*Event
	for _, ev := range notes(0, events) {
		large = append(large, sized(ev, size))
	}
	v := viewOf(t, memory(t, Options{}, large...))
	const read, decoded = events * size / readPerStep, events * size / decodedPerStep
	for least, ask := range map[int]func(v *View) error{
		read:    func(v *View) error { _, err := drain(v.QueryRaw(t.Context(), Filter{})); return err },
		decoded: func(v *View) error { _, err := drain(v.Query(t.Context(), Filter{})); return err },
		decoded + 1: func(v *View) error { // only looked at
			_, err := drain(v.IDs(t.Context(), Filter{Tags: TagMap{"long": {"x"}}}))
			return err
		},
	} {
		if few, all := ask(v.Within(least)), ask(v.Within(2*least)); !errors.Is(few, ErrTooBroad) || all != nil {
			t.Errorf("within %d steps: %v; within twice as many: %v", least, few, all)
		}
	}
}

// TestLongQueries: one ends with its context, and calls the function of its view every few hundred
// steps, whose error ends it too.
func TestLongQueries(t *testing.T) {
	t.Parallel()
	v := viewOf(t, memory(t, Options{}, notes(0, 5000)...))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls, enough := 0, errors.New("enough")
	for want, asked := range map[error]*View{
		context.Canceled: v,
		enough: v.Yielding(func(context.Context) error {
			if calls++; calls > 4 {
				return enough
			}
			return nil
		}),
	} {
		n := 0
		var last error
		for _, last = range asked.IDs(ctx, Filter{Kinds: []int{1}}) {
			n++
			cancel()
		}
		if !errors.Is(last, want) || n > 2000 {
			t.Errorf("%d events, ended with %v, want %v", n, last, want)
		}
	}
}

// FuzzOddTags: with any tags an event is found by exactly its tags, by none of their neighbours,
// and leaves nothing behind.
func FuzzOddTags(f *testing.F) {
	f.Add("t", "", "x", "d")
	f.Add("e", "\xff", "\xff\xff", "\xff")
	f.Add("a", strings.Repeat("long", 5000), strings.Repeat("long", 5000)+".", strings.Repeat("d", 70000))
	f.Add("", "", "", "")
	f.Add("d", "x", "y", "z")
	f.Add("expiration", "1", "2", "3")
	f.Fuzz(func(t *testing.T, name, value, other, d string) {
		o := Options{Now: func() Timestamp { return 0 }}
		ev := made(1, 30617, 5, Tag{"d", d}, Tag{name, value}, Tag{name}, Tag{})
		db := memory(t, o, ev)
		v := viewOf(t, db)
		stored, err := v.Event(ev.ID)
		must(t, err)
		for _, f := range []Filter{
			{Tags: TagMap{name: {stored.Tags[1][1]}}}, {Tags: TagMap{name: {other}}}, {Tags: TagMap{name: {value, other}}},
			{Tags: TagMap{"d": {stored.Tags.GetD()}, name: {stored.Tags[1][1]}}}, {Tags: TagMap{"d": {other}}},
		} {
			if n := count(t, v, f); (n == 1) != f.Matches(stored) {
				t.Fatalf("%s: %d; it matches: %v", f.String(), n, f.Matches(stored))
			}
		}
		if got, err := v.Replaceable(30617, me, stored.Tags.GetD()); err != nil || got.ID != ev.ID {
			t.Fatalf("holder: %v, %v", got, err)
		}
		deletion := made(3, 5, 6, Tag{"e", ev.ID})
		apply(t, db, deletion)
		never := memory(t, o)
		must(t, never.Apply([]Record{{Seq: 2, Event: deletion}}))
		gone := Record{Seq: 3, Removed: ev.ID, Subject: proto.EventSubjectOf(stored).String()}
		must(t, db.Apply([]Record{gone}), never.Apply([]Record{gone}))
		if left, err := db.Compare(t.Context(), never); left > 0 || err != nil {
			t.Fatalf("the deleted event left %d entries behind, %v", left, err)
		}
	})
}
