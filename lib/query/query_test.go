package query_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

const patience = fixture.Patience

var (
	quiet = slog.New(slog.DiscardHandler)
	must  = fixture.Must
)

// world is a bus with a log.
type world struct {
	*bus.Bus
	t testing.TB
}

func newWorld(t *testing.T) *world {
	t.Parallel()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing, Name: t.Name()})
	must(t, err)
	t.Cleanup(b.Close)
	return &world{b, t}
}

var author = fixture.Unsigned(strings.Repeat("a1", 32))

func event(kind int, at int, content string, tags ...nostr.Tag) *nostr.Event {
	return author.At(nostr.Timestamp(at)).Sign(kind, content, tags...)
}

// accept appends events to the log, and gives what an index is to apply.
func (w *world) accept(events ...*nostr.Event) (recs []eventdb.Record) {
	var msgs []*nats.Msg
	for _, ev := range events {
		msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: nostr.Encode(ev)})
	}
	last, err := w.PublishBatch(w.t.Context(), msgs, nil)
	must(w.t, err)
	for n, m := range msgs {
		recs = append(recs, eventdb.Record{Seq: last - uint64(len(msgs)-1-n), Event: events[n], Raw: m.Data})
	}
	return recs
}

// replica is an index and what answers from it.
type replica struct {
	*query.Index
	stop func()
}

// replica serves an index that has those records; it reads nothing by itself.
func (w *world) replica(recs []eventdb.Record) replica {
	db, err := eventdb.Open("", eventdb.Options{})
	must(w.t, err)
	must(w.t, db.Apply(recs))
	x := query.NewIndex(db, w.Bus)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- query.Serve(ctx, x, w.Conn, quiet) }()
	stop := sync.OnceFunc(func() {
		cancel()
		must(w.t, <-done)
	})
	w.t.Cleanup(func() {
		stop()
		db.Close()
	})
	return replica{x, stop}
}

func (w *world) remote() *query.Remote {
	r, err := query.NewRemote(w.t.Context(), w.Bus, quiet)
	must(w.t, err)
	return r
}

func idOf(t testing.TB, ev *nostr.Event) (id [32]byte) {
	_, err := hex.Decode(id[:], []byte(ev.ID))
	must(t, err)
	return id
}

func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func has(t testing.TB, s query.Source, events ...*nostr.Event) []bool {
	t.Helper()
	var ids [][32]byte
	for _, ev := range events {
		ids = append(ids, idOf(t, ev))
	}
	answer, err := s.Has(patient(t), ids)
	must(t, err)
	return answer
}

func gather[T any](t testing.TB, all iter.Seq2[T, error]) (list []T) {
	for x, err := range all {
		must(t, err)
		list = append(list, x)
	}
	return list
}

// banned is a ban of what a filter matches.
type banned nostr.Filter

func (b banned) Reach() iter.Seq2[string, nostr.Filter] {
	return maps.All(map[string]nostr.Filter{"a ban": nostr.Filter(b)})
}

func (b banned) Banned(ev *nostr.Event) (string, bool) {
	return "a ban", nostr.Filter(b).Matches(ev)
}

// TestBothWaysOfAskingAreOne: over random logs with replacements, deletions, bans and events that
// have expired, one who asks on the bus is told what the index says, however many pages it takes.
func TestBothWaysOfAskingAreOne(t *testing.T) {
	w := newWorld(t)
	large := event(1621, 1010, strings.Repeat("<", 600<<10), nostr.Tag{"a", "1"})
	escaped := event(1621, 1011, strings.Repeat("\b\u2028", 50<<10), nostr.Tag{"a", "1"})
	events := []*nostr.Event{large, escaped, event(1, 1000, "expired", nostr.Tag{"expiration", "2000"})}
	for n := range 400 { // many share a second, and some replace others
		events = append(events, event([]int{1, 1621, 30617, 30618}[n%4], 1000+n%39, strings.Repeat("<&>", n*10), nostr.Tag{"a", fmt.Sprint(n % 5)}, nostr.Tag{"d", fmt.Sprint(n % 180)}))
	}
	events = append(events, event(5, 1020, "", nostr.Tag{"e", events[10].ID}))
	hidden := event(30618, 2000, "", nostr.Tag{"d", "hidden"})
	x := w.replica(w.accept(append(events, hidden)...))
	must(t, x.DB.Hide(banned{Kinds: []int{hidden.Kind}}))
	remote := w.remote()
	unknown := event(1, 1, "unknown")
	asked := append(events, unknown)
	local := has(t, x, asked...)
	if got := has(t, remote, asked...); !slices.Equal(got, local) || slices.Contains(local, false) == false || !slices.Contains(local, true) {
		t.Error("the two do not have the same events")
	}
	pages := 0
	for filter := range strings.FieldsSeq(strings.NewReplacer("LARGE", large.ID, "AUTHOR", large.PubKey).Replace(`
		{} {"kinds":[1621]} {"kinds":[30617,30618]} {"kinds":[5]} {"#a":["1","3"],"kinds":[1621]} {"until":1020} {"since":1015,"kinds":[1]} {"limit":7}
		{"limit":700} {"limit":0} {"limit":-1} {"kinds":[42]} {"ids":["LARGE"]} {"authors":["AUTHOR"],"limit":3} {"search":"nothing"}`)) {
		var f nostr.Filter
		must(t, f.UnmarshalJSON([]byte(filter)))
		want, got := gather(t, x.Query(t.Context(), f)), gather(t, remote.Query(patient(t), f))
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %d events on the bus, %d in the index, or others", f, len(got), len(want))
		}
		if ids := gather(t, remote.IDs(patient(t), f)); !slices.Equal(ids, gather(t, x.IDs(t.Context(), f))) || len(ids) != len(want) {
			t.Errorf("%v: %d ids on the bus, %d in the index", f, len(ids), len(want))
		}
		size := 0
		for _, ev := range want {
			size += len(ev.Content)
		}
		pages = max(pages, size/proto.MaxQueriedBytes)
	}
	if pages < 3 {
		t.Errorf("no answer took more than %d pages", pages)
	}
	for _, s := range []query.Source{x, remote} {
		for _, want := range []*nostr.Event{large, escaped} {
			if ev, err := query.First(patient(t), s, nostr.Filter{IDs: []string{want.ID}}); err != nil || ev.String() != want.String() {
				t.Errorf("by id: %v", err)
			}
		}
		for _, ev := range []*nostr.Event{unknown, hidden} {
			if _, err := query.First(patient(t), s, nostr.Filter{IDs: []string{ev.ID}}); !errors.Is(err, query.ErrNotFound) {
				t.Errorf("by the id of one that is unknown or banned: %v", err)
			}
		}
		if ids := gather(t, s.IDs(patient(t), nostr.Filter{IDs: []string{hidden.ID}})); len(ids) != 1 || !has(t, s, hidden)[0] {
			t.Error("a banned event is said not to be here: it would be fetched again")
		}
		if _, err := query.First(patient(t), s, nostr.Filter{Kinds: []int{30617}, Tags: nostr.TagMap{"d": {"none"}}}); !errors.Is(err, query.ErrNotFound) {
			t.Errorf("by an unknown address: %v", err)
		}
	}
}

// TestIDsOfManyPages: more ids than an answer takes, all of one second.
func TestIDsOfManyPages(t *testing.T) {
	w := newWorld(t)
	var recs []eventdb.Record
	for n := range proto.MaxQueriedIDs*2 + 10 {
		recs = append(recs, eventdb.Record{Seq: uint64(n + 1), Event: event(1621, 7, fmt.Sprint(n))})
	}
	x := w.replica(recs)
	for _, want := range []int{3, proto.MaxQueriedIDs, proto.MaxQueriedIDs + 7, len(recs)} {
		f := nostr.Filter{Kinds: []int{1621}, Limit: want}
		got := gather(t, w.remote().IDs(patient(t), f))
		if local := gather(t, x.IDs(t.Context(), f)); !slices.Equal(got, local) || len(got) != want {
			t.Errorf("%d ids, want %d in the same order", len(got), want)
		}
	}
}

// TestNoAnswer: the process is not ready while no replica answers, and is ready when one does.
func TestNoAnswer(t *testing.T) {
	w := newWorld(t)
	ev := event(1, 1, "first")
	recs := w.accept(ev)
	remote := w.remote()
	go remote.Run(t.Context())
	until := func(ready bool) {
		t.Helper()
		fixture.Await(t, fmt.Sprint("ready: ", ready), func() bool { return (remote.Answered() == nil) == ready })
	}
	until(false)
	x := w.replica(recs)
	until(true)
	x.stop()
	until(false)
	short, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	if _, err := remote.Has(short, [][32]byte{idOf(t, ev)}); err == nil || !strings.Contains(remote.Answered().Error(), "no ingest") {
		t.Errorf("without a replica: %v; %v", err, remote.Answered())
	}
	w.replica(recs)
	if !has(t, remote, ev)[0] {
		t.Error("unknown")
	}
	until(true)
}

// TestBadQuestions are refused at once, and not asked again.
func TestBadQuestions(t *testing.T) {
	w := newWorld(t)
	w.replica(w.accept(event(1, 1, "first")))
	if has(t, w.remote(), event(1, 2, "unknown"))[0] { // then a replica answers
		t.Fatal("known")
	}
	for _, question := range []string{"", "{", `{"filter":[]}`} {
		msg, err := w.Conn.Request(proto.SubjectQueryEvents, []byte(question), patience)
		if err != nil || msg.Header.Get(micro.ErrorCodeHeader) != proto.QueryBad {
			t.Errorf("%.60s: %v, %v", question, msg, err)
		}
	}
	for _, err := range w.remote().Query(patient(t), nostr.Filter{IDs: slices.Repeat([]string{strings.Repeat("a", 64)}, 20_000)}) {
		if !errors.Is(err, query.ErrRefused) {
			t.Errorf("a filter that is too large: %v", err)
		}
	}
}

// late is a source that has not applied the log that far when it is asked first.
type late struct {
	query.Source
	asked bool
}

func (l *late) Reached(ctx context.Context, seq uint64) error {
	if !l.asked {
		l.asked = true
		return errors.New("not yet")
	}
	return l.Source.Reached(ctx, seq)
}

// TestWhatHasLeftTheLogIsNotHeard: an empty message stands in its place, and nothing is told of it.
func TestWhatHasLeftTheLogIsNotHeard(t *testing.T) {
	w := newWorld(t)
	gone := event(1621, 1, "gone")
	x, remote := w.replica(w.accept(gone)), w.remote()
	heard := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for name, s := range map[string]query.Source{"the index": x.Index, "an index that is late": &late{Source: x.Index}, "the bus": remote} {
		hearing := query.SubscribeAccepted(w.JS, s, []int{1621}, func(recs []eventdb.Record) {
			for _, r := range recs {
				heard <- name + ": " + r.Event.Content
			}
		})
		running.Go(func() {
			if err := hearing.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	seq, err := w.PublishBatch(t.Context(), []*nats.Msg{{
		Subject: proto.EventSubjectOf(gone).String(), Header: nats.Header{proto.HeaderRemoved: {gone.ID}},
	}}, nil)
	must(t, err)
	must(t, x.DB.Apply(append([]eventdb.Record{{Seq: seq, Removed: gone.ID}}, w.accept(event(1, 2, "of another kind"), event(1621, 3, "stays"))...)))
	got := []string{<-heard, <-heard, <-heard}
	slices.Sort(got)
	if want := []string{"an index that is late: stays", "the bus: stays", "the index: stays"}; !slices.Equal(got, want) || len(heard) > 0 {
		t.Errorf("heard %q and %d more, want %q", got, len(heard), want)
	}
}
