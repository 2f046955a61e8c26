package session_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// reconciling is a relay with NIP-77, and what ingest says to it, both of one play.
type reconciling struct {
	*play
	mu      sync.Mutex
	filters map[string]nostr.Filter
	opened  []nostr.Filter
	unable  string           // what the relay answers instead
	hidden  map[string]bool  // ids that it names and does not deliver
	fetched map[string]int   // how often an id was asked for
	reqs    [][]nostr.Filter // historic ones that do not ask by id
	largest int              // REQ by ids
	shows   int              // of a REQ by ids; 0: all
	partial int              // how many events it shows when it is asked for everything by NIP-77; 0: all
	silent  bool             // it does not answer by NIP-77
	closes  int              // so many of the next REQs by root events it closes
	// unableAfter is after how many messages of NIP-77 it takes no more; 0: after none.
	unableAfter int
}

// newReconciling is a play with a relay that has these events, of which the first so many are known
// here.
func newReconciling(t *testing.T, here int, stored ...*nostr.Event) *reconciling {
	r := &reconciling{play: newPlay(t), filters: map[string]nostr.Filter{}, hidden: map[string]bool{}, fetched: map[string]int{}}
	r.stored = stored
	for _, ev := range stored[:here] {
		r.accepted[ev.ID] = true
	}
	in := intake.New(intake.Options{Offerer: r, Stored: r})
	go in.Run(t.Context())
	r.session = session.New(session.Options{
		Rules: rules, Wanted: r.session.Wanted, Asker: r, Intake: in.Open("wss://r.example.com"), Observer: r, Log: slog.New(slog.DiscardHandler),
		Negentropy: &session.Negentropy{
			Service: r, Room: session.NewRoom(), Seq: func() uint64 { return 0 }, Walks: session.NewWalks(),
		},
	})
	return r
}

// set is what matches a filter, of what is known here or of all.
func (r *reconciling) set(f nostr.Filter, here bool) (set reconcile.Packed) {
	r.with(func() {
		for _, ev := range r.stored {
			if f.Matches(ev) && (!here || r.accepted[ev.ID]) {
				id, _ := hex.DecodeString(ev.ID)
				set = append(set, reconcile.Item{CreatedAt: ev.CreatedAt, ID: [32]byte(id)})
			}
		}
	})
	return reconcile.Pack(set)
}

func (r *reconciling) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	if filters[0].LimitZero {
		return r.play.Req(ctx, sub, filters)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if filters[0].IDs == nil {
		r.reqs = append(r.reqs, filters)
		if r.closes > 0 && len(filters[0].Tags["e"]) > 0 {
			r.closes--
			r.say(ctx, wire.Message{Kind: wire.Closed, Sub: sub, Reason: "error: not now"})
			return nil
		}
		return r.play.Req(ctx, sub, filters)
	}
	asked := filters[0]
	r.largest = max(r.largest, len(asked.IDs))
	shown := asked
	shown.IDs = []string{}
	for _, id := range asked.IDs {
		r.fetched[id]++
		if !r.hidden[id] && (r.shows == 0 || len(shown.IDs) < r.shows) {
			shown.IDs = append(shown.IDs, id)
		}
	}
	return r.play.Req(ctx, sub, []nostr.Filter{shown})
}

func (r *reconciling) NegOpen(ctx context.Context, sub string, f nostr.Filter, frame []byte) error {
	r.mu.Lock()
	r.filters[sub] = f
	r.opened = append(r.opened, f)
	r.mu.Unlock()
	return r.NegMsg(ctx, sub, frame)
}

func (r *reconciling) NegMsg(ctx context.Context, sub string, frame []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent {
		return nil
	}
	if r.unableAfter > 0 {
		if r.unableAfter--; r.unableAfter == 0 {
			r.unable = "error: not any more"
		}
	}
	m := wire.Message{Kind: wire.NegErr, Sub: sub, Reason: r.unable}
	if r.unable == "" {
		set := r.set(r.filters[sub], false)
		if r.partial > 0 && r.filters[sub].Tags == nil && r.filters[sub].Kinds == nil {
			set = set[:r.partial]
		}
		out, err := reconcile.Respond(ctx, set, frame, reconcile.DefaultLimits)
		if err != nil {
			return err
		}
		m = wire.Message{Kind: wire.NegMsg, Sub: sub, Frame: out}
	}
	r.say(ctx, m)
	return nil
}

// say has the relay say something.
func (r *reconciling) say(ctx context.Context, m wire.Message) {
	go func() {
		select {
		case r.messages <- m:
		case <-ctx.Done():
		}
	}()
}

func (r *reconciling) Begin(ctx context.Context, s query.Reconciliation) ([]byte, uint64, error) {
	set := r.set(s.Filter, true)
	first, err := reconcile.Start(ctx, set, reconcile.DefaultLimits)
	return first, uint64(len(set)), err
}

// Continue takes a moment, so that every session that begins at the same time has been told what is
// known here before anything is fetched.
func (r *reconciling) Continue(ctx context.Context, s query.Reconciliation, answer []byte) (step query.Step, err error) {
	time.Sleep(time.Millisecond)
	var listed, told uint64
	step.Message, listed, err = reconcile.Continue(ctx, r.set(s.Filter, true), answer, reconcile.DefaultLimits, func(id [32]byte) error {
		r.with(func() {
			if told++; !r.accepted[hex.EncodeToString(id[:])] {
				step.Missing = append(step.Missing, id)
			}
		})
		return nil
	})
	step.Alone = listed - (told - uint64(len(step.Missing)))
	return step, err
}

// asked is how many sessions were opened, and what was asked for by REQ and not by id.
func (r *reconciling) askedFor() (sessions int, reqs [][]nostr.Filter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.opened), slices.Clone(r.reqs)
}

// fetches is how often each event was asked for by its id.
func (r *reconciling) fetches() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.fetched)
}

// all reports that everything that the relay has is known here.
func (r *reconciling) all() {
	r.t.Helper()
	r.with(func() {
		for _, ev := range r.stored {
			if !r.accepted[ev.ID] {
				r.t.Fatalf("the event of %d has not come; offered %d", ev.CreatedAt, len(r.offered))
			}
		}
	})
}

const repository = "30617:aa:x"

// tagged are events of a repository, one a second, the newest first.
func tagged(t *testing.T, n int) (events []*nostr.Event) {
	for i := range n {
		events = append(events, event(t, 1621, nostr.Timestamp(2000-i), nostr.Tag{"a", repository}))
	}
	return events
}

// TestDailyByNegentropy fetches by id what is missing here, and nothing else, each event once.
func TestDailyByNegentropy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := tagged(t, 400)
		for _, ev := range events[300:] { // which two filters of a group find
			ev.Tags = append(ev.Tags, nostr.Tag{"A", repository})
			if err := ev.Sign(key); err != nil {
				t.Fatal(err)
			}
		}
		r := newReconciling(t, 150, events...)
		r.run(session.Start{})
		r.want(1, repos(repository))
		time.Sleep(time.Minute)
		r.all()
		sessions, reqs := r.askedFor()
		if sessions != 1 {
			t.Errorf("%d sessions, want one: of the other filters nothing is known", sessions)
		}
		for _, filters := range reqs { // layer 1, and what nothing is known of
			for _, f := range filters {
				if len(f.Tags["a"]) > 0 {
					t.Errorf("asked by REQ for %v", f)
				}
			}
		}
		for id, times := range r.fetches() {
			if times != 1 {
				t.Errorf("%s was fetched %d times", id, times)
			}
		}
		if len(r.fetches()) != 250 || r.largest != 100 {
			t.Errorf("%d events were fetched, %d at once at most", len(r.fetches()), r.largest)
		}
		if st := r.status(); st.Connection != session.Connected || st.Repos != 1 || !st.CaughtUp {
			t.Errorf("status %+v", st)
		}

		// A day later another few have come that were not told.
		r.with(func() {
			r.stored = append(r.stored, event(t, 1621, 99, nostr.Tag{"a", repository}, nostr.Tag{"A", repository}))
		})
		_, before := r.askedFor()
		r.daily <- time.Now()
		time.Sleep(time.Minute)
		r.all()
		sessions, reqs = r.askedFor()
		if sessions != 3 || len(reqs) != len(before)+2 { // #a and #A; layer 1 and #q by REQ
			t.Errorf("%d sessions, %v", sessions, reqs[len(before):])
		}
		for id, times := range r.fetches() {
			if times != 1 {
				t.Errorf("%s was fetched %d times", id, times)
			}
		}
		last := r.offer(len(r.offered) - 1)
		if last.Source != proto.SourceDaily || last.Lane != proto.LaneSyncDaily || !slices.Contains(r.judged, "daily gap") {
			t.Errorf("the last came as %v on %v; judged %v", last.Source, last.Lane, r.judged[len(r.judged)-1])
		}
		r.stop()
	})
}

// TestReconnectByREQ does not reconcile what is asked for since a moment.
func TestReconnectByREQ(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReconciling(t, 10, tagged(t, 20)...)
		since := nostr.Timestamp(1981)
		r.run(session.Start{Since: &since, Confirmed: repos(repository), Mark: session.Mark{Target: 1}})
		r.want(1, repos(repository))
		time.Sleep(time.Minute)
		r.all()
		if sessions, _ := r.askedFor(); sessions != 0 {
			t.Errorf("%d sessions", sessions)
		}
		r.stop()
	})
}

// TestACrowdedSecondComesWhole has more events come while a live subscription is closed, in one
// second, than a page shows.
func TestACrowdedSecondComesWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReconciling(t, 10, tagged(t, 10)...)
		r.run(session.Start{})
		r.want(1, repos(repository))
		time.Sleep(time.Minute)
		r.messages <- wire.Message{Kind: wire.Closed, Sub: "l3", Reason: "error: too long"}
		synctest.Wait()
		r.with(func() {
			for i := range 4 * rules.PageLimit {
				r.stored = append(r.stored, event(t, 1621, nostr.Now(), nostr.Tag{"a", repository}, nostr.Tag{"n", fmt.Sprint(i)}))
			}
		})
		time.Sleep(rules.Cooldown + time.Minute)
		r.all()
		r.stop()
	})
}

// TestNamedNotDelivered asks twice for what the relay named. Then the batch has failed, and is
// tried again by REQ, because what the relay names is worth nothing.
func TestNamedNotDelivered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := tagged(t, 130)
		r := newReconciling(t, 5, events...)
		for _, ev := range events[100:] {
			r.hidden[ev.ID] = true
		}
		r.run(session.Start{})
		r.want(1, repos(repository))
		time.Sleep(30 * time.Second)
		for _, ev := range events[100:] {
			if n := r.fetches()[ev.ID]; n != 2 {
				t.Fatalf("an event that does not come was asked for %d times", n)
			}
		}
		if st := r.status(); st.Connection != session.Incomplete || st.Repos != 0 {
			t.Errorf("status %+v", st)
		}
		sessions, _ := r.askedFor()
		time.Sleep(2 * time.Minute)
		r.all()
		if after, _ := r.askedFor(); after != sessions || len(r.fetches()) != 125 {
			t.Errorf("reconciled again: %d sessions, %d events fetched", after-sessions, len(r.fetches()))
		}
		if st := r.status(); st.Connection != session.Connected || st.Repos != 1 {
			t.Errorf("status %+v", st)
		}
		r.stop()
	})
}

// spread are events of 60 of 3000 repositories.
func spread(t *testing.T) (events []*nostr.Event) {
	t.Helper()
	for i := 0; i < 3000; i += 50 {
		events = append(events, event(t, 1621, nostr.Timestamp(9000-i), nostr.Tag{"a", fmt.Sprintf("30617:aa:%03d", i)}))
	}
	return events
}

// TestManyFilters asks in few sessions for many references: in one for everything that the relay
// has, and where it turns out not to show all of that, in one for each thousand references.
func TestManyFilters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ partial, sessions int }{"everything": {0, 1}, "by filters": {30, 4}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newReconciling(t, 59, spread(t)...)
				r.partial = c.partial
				r.run(session.Start{})
				r.want(1, manyRepos(0, 3000))
				time.Sleep(time.Minute)
				r.all()
				sessions, reqs := r.askedFor()
				if sessions != c.sessions || len(r.fetches()) != 1 {
					t.Errorf("%d sessions for 30 filters, want %d; %d events fetched", sessions, c.sessions, len(r.fetches()))
				}
				if c.partial == 0 && len(reqs) != 1 { // layer 1
					t.Errorf("asked for %v", reqs)
				}
				if st := r.status(); st.Connection != session.Connected || st.Repos != 3000 {
					t.Errorf("status %+v", st)
				}
				r.stop()
			})
		})
	}
}

// faster is an intake to which others bring everything first.
type faster struct{ session.Intake }

func (faster) Known(string) bool { return true }

// TestAnotherRelayIsFaster: no wake is missed where all that a relay names has come from elsewhere
// by the time when it would be fetched: then there is nothing to ask for, nothing more comes from
// the relay, and the batch ends all the same.
func TestAnotherRelayIsFaster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stored []*nostr.Event
		for i := range 5 {
			stored = append(stored, event(t, 30617, nostr.Timestamp(1000-i), nostr.Tag{"d", fmt.Sprint(i)}))
		}
		r := newReconciling(t, 2, stored...)
		r.session.Intake = faster{r.session.Intake}
		r.run(session.Start{})
		time.Sleep(rules.Calm + time.Second)
		synctest.Wait()
		if st := r.status(); st.Connection != session.Connected || !st.CaughtUp || len(r.fetches()) > 0 {
			t.Errorf("%+v, %d events were fetched", st, len(r.fetches()))
		}
		r.stop()
	})
}
