package session_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// reconciling is a relay with NIP-77, and what ingest says to it, both of one play.
type reconciling struct {
	*play
	filters map[string]nostr.Filter
	opened  int                                       // sessions
	frames  int                                       // of NIP-77
	instead func(n int, f nostr.Filter) *wire.Message // of its nth answer; nil: it answers
	hidden  map[string]bool                           // ids that it names and does not deliver
	partial int                                       // how many events it shows when it is asked for everything; 0: all
	fetched map[string]int                            // how often an id was asked for
	largest int                                       // REQ by ids
	reqs    [][]nostr.Filter                          // historic ones that do not ask by id
	away    func() bool                               // ingest does not answer
	endless bool                                      // there is always something left to say
	asking  weak.Pointer[byte]                        // the text of an id that was asked for last
}

// reconciles has the relay of a play reconcile these events, of which the first so many are known.
func (p *play) reconciles(here int, stored ...*nostr.Event) *reconciling {
	r := &reconciling{
		play: p, filters: map[string]nostr.Filter{}, hidden: map[string]bool{}, fetched: map[string]int{},
		instead: func(int, nostr.Filter) *wire.Message { return nil }, away: func() bool { return false },
	}
	r.stored = stored
	for _, ev := range stored[:here] {
		r.accepted[ev.ID] = true
	}
	r.session.Asker = r
	r.session.Negentropy = &session.Negentropy{Service: r, Room: semaphore.NewWeighted(session.RoomBytes), Seq: func() uint64 { return 0 }, Coordinator: &session.HistoryCoordinator{}}
	return r
}

// set is what matches a filter, of what is known here or of all; the lock is held.
func (r *reconciling) set(f nostr.Filter, here bool) (set reconcile.Packed) {
	for _, ev := range r.stored {
		if f.Matches(ev) && (!here || r.accepted[ev.ID]) {
			id, _ := hex.DecodeString(ev.ID)
			set = append(set, reconcile.Item{CreatedAt: ev.CreatedAt, ID: [32]byte(id)})
		}
	}
	return reconcile.Pack(set)
}

func (r *reconciling) Req(sub string, filters []nostr.Filter) {
	r.with(func() {
		asked := filters[0]
		switch {
		case asked.LimitZero:
		case asked.IDs == nil:
			r.reqs = append(r.reqs, filters)
		default:
			r.largest = max(r.largest, len(asked.IDs))
			shown := asked
			shown.IDs = []string{}
			for _, id := range asked.IDs {
				r.asking = weak.Make(unsafe.StringData(id))
				if r.fetched[strings.Clone(id)]++; !r.hidden[id] {
					shown.IDs = append(shown.IDs, id)
				}
			}
			filters = []nostr.Filter{shown}
		}
	})
	r.play.Req(sub, filters)
}

func (r *reconciling) NegOpen(sub string, f nostr.Filter, frame []byte) {
	r.with(func() { r.filters[sub] = f; r.opened++ })
	r.NegMsg(sub, frame)
}

func (r *reconciling) NegMsg(sub string, frame []byte) {
	m := wire.Message{Kind: wire.NegMsg}
	r.with(func() {
		r.frames++
		f := r.filters[sub]
		if other := r.instead(r.frames, f); other != nil {
			m = *other
			return
		}
		set := r.set(f, false)
		if r.partial > 0 && f.Tags == nil && f.Kinds == nil {
			set = set[:r.partial]
		}
		var err error
		if m.Frame, err = reconcile.Respond(r.ctx, set, frame, reconcile.DefaultLimits); err != nil {
			r.t.Error(err)
		}
	})
	if m.Kind != wire.Notice {
		m.Sub = sub
	}
	go r.say(r.ctx, m)
}

func (r *reconciling) Begin(ctx context.Context, s proto.ReconcileQuery) (step query.Step, err error) {
	r.with(func() {
		set := r.set(s.Filter, true)
		if step.Known = uint64(len(set)); step.Known > 0 {
			step.Oldest = set[0].CreatedAt
		}
		if step.Message, err = reconcile.Start(ctx, set, reconcile.DefaultLimits); r.away() {
			err = errors.New("away")
		}
	})
	return step, err
}

// Continue takes a moment, so that every session that begins at the same time has been told what is
// known here before anything is fetched.
func (r *reconciling) Continue(ctx context.Context, s proto.ReconcileQuery, answer []byte) (step query.Step, err error) {
	time.Sleep(time.Millisecond)
	r.with(func() {
		told, shown := 0, reconcile.Shown{}
		step.Message, shown, err = reconcile.Continue(ctx, r.set(s.Filter, true), answer, s.Opening, reconcile.DefaultLimits, func(id [32]byte) error {
			if told++; !r.accepted[hex.EncodeToString(id[:])] {
				step.Missing = append(step.Missing, id)
			}
			return nil
		})
		step.Oldest, step.OnlyHere = shown.Oldest, shown.Listed-uint64(told-len(step.Missing))
		if r.endless {
			step.Message = answer
		}
	})
	return step, err
}

// askedFor is how many sessions were opened, what was asked for by REQ and not by id, and how often
// each event was by its id.
func (r *reconciling) askedFor() (sessions int, reqs [][]nostr.Filter, fetched map[string]int) {
	r.with(func() { sessions, reqs, fetched = r.opened, slices.Clone(r.reqs), maps.Clone(r.fetched) })
	return sessions, reqs, fetched
}

// inSync waits until everything that the relay has is known here and so many repositories are
// confirmed.
func (r *reconciling) inSync(repos int, wait time.Duration) {
	r.t.Helper()
	sleep(wait)
	r.with(func() {
		for _, ev := range r.stored {
			if !r.accepted[ev.ID] && ev.Kind != 5 {
				r.t.Fatalf("the event of %d has not come; offered %d", ev.CreatedAt, len(r.offered))
			}
		}
	})
	if st := r.status(); st.Connection != session.Connected || st.Repos != repos || !st.CaughtUp {
		r.t.Errorf("status %+v", st)
	}
}

const repository = "30617:aa:000"

// tagged are events of a repository, one a second, the newest first.
func tagged(n int) (events []*nostr.Event) {
	for i := range n {
		events = append(events, issue(nostr.Timestamp(2000-i), repository))
	}
	return events
}

// TestDailyByNegentropy fetches by id what is missing here, and nothing else, each event once.
func TestDailyByNegentropy(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		events := tagged(400)
		for _, ev := range events[300:] { // which two filters of a group find
			ev.Tags = append(ev.Tags, nostr.Tag{"A", repository})
			*ev = *event(1621, ev.CreatedAt, ev.Tags...)
		}
		r := p.reconciles(150, events...)
		r.begin()
		r.wants(1)
		r.inSync(1, time.Minute)
		sessions, before, fetched := r.askedFor()
		if sessions != 1 || len(fetched) != 250 || r.largest != 100 {
			t.Errorf("%d sessions, want one: of the other filters nothing is known; %d events were fetched, %d at once at most", sessions, len(fetched), r.largest)
		}
		for _, f := range slices.Concat(before...) { // layer 1, and what nothing is known of
			if len(f.Tags["a"]) > 0 && f.Until == nil { // what is older than all that was fetched is looked for
				t.Errorf("asked by REQ for %v", f)
			}
		}

		// A day later another few have come that were not told.
		r.with(func() {
			r.stored = append(r.stored, event(1621, 99, nostr.Tag{"a", repository}, nostr.Tag{"A", repository}))
		})
		r.daily <- time.Now()
		r.inSync(1, time.Minute)
		sessions, reqs, fetched := r.askedFor()
		reqs = slices.DeleteFunc(reqs[len(before):], func(filters []nostr.Filter) bool { return filters[0].Until != nil })
		if sessions != 3 || len(reqs) != 2 { // #a and #A; layer 1 and #q by REQ, and what may be hidden
			t.Errorf("%d sessions, %v", sessions, reqs)
		}
		for id, times := range fetched {
			if times != 1 {
				t.Errorf("%s was fetched %d times", id, times)
			}
		}
		last := r.offer(len(r.offered) - 1)
		if last.Source != proto.SourceDaily || last.Lane != proto.LaneSyncDaily || !slices.Contains(r.judged, "daily gap") {
			t.Errorf("the last came as %v on %v; judged %v", last.Source, last.Lane, r.judged[len(r.judged)-1])
		}
	})
}

// TestACrowdedSecondComesWhole has more events come while a live subscription is closed, in one
// second, than a page shows.
func TestACrowdedSecondComesWhole(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		r := p.reconciles(10, tagged(10)...)
		r.begin()
		r.wants(1)
		time.Sleep(time.Minute)
		r.closed("l3", "error: too long")
		r.with(func() {
			for i := range 4 * rules.PageLimit {
				r.stored = append(r.stored, event(1621, nostr.Now(), nostr.Tag{"a", repository}, nostr.Tag{"n", fmt.Sprint(i)}))
			}
		})
		r.inSync(1, rules.Cooldown+time.Minute)
	})
}

// TestNamedNotDelivered asks twice for what the relay named. Then the batch has failed, and is
// tried again by REQ, because what the relay names is worth nothing.
func TestNamedNotDelivered(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		events := tagged(130)
		r := p.reconciles(5, events...)
		for _, ev := range events[100:] {
			r.hidden[ev.ID] = true
		}
		r.begin()
		r.wants(1)
		sleep(30 * time.Second)
		sessions, _, fetched := r.askedFor()
		for _, ev := range events[100:] {
			if n := fetched[ev.ID]; n != 2 {
				t.Fatalf("an event that does not come was asked for %d times", n)
			}
		}
		if st := r.status(); st.Connection != session.Incomplete || st.Repos != 0 {
			t.Errorf("status %+v", st)
		}
		if runtime.GC(); r.asking.Value() != nil {
			t.Error("what does not come stays in memory")
		}
		r.inSync(1, 2*time.Minute)
		if after, _, fetched := r.askedFor(); after != sessions || len(fetched) != 125 {
			t.Errorf("reconciled again: %d sessions, %d events fetched", after-sessions, len(fetched))
		}
	})
}

// TestManyFilters asks in few sessions for many references: in one for everything that the relay
// has, and where it turns out not to show all of that, in one for each thousand references. So also
// while another connection walks: too much would be missing.
func TestManyFilters(t *testing.T) {
	type row struct {
		partial, sessions, fetched int
		busy                       bool
	}
	each(t, map[string]row{
		"everything": {0, 1, 2, false}, "by filters": {30, 4, 1, false}, "another walks": {0, 3, 1, true},
	}, func(t *testing.T, p *play, c row) {
		var stored []*nostr.Event // of 60 of 3000 repositories
		for i := 0; i < 3000; i += 50 {
			stored = append(stored, issue(nostr.Timestamp(9000-i), fmt.Sprintf("30617:aa:%03d", i)))
		}
		r := p.reconciles(59, append(stored, event(5, 9))...) // which no layer asks for
		r.partial = c.partial
		if c.busy {
			r.session.Negentropy.Coordinator.Take(repos("30617:aa:other"), time.Now())
		}
		r.begin()
		r.wants(3000)
		r.inSync(3000, time.Minute)
		r.came(1)
		sessions, reqs, fetched := r.askedFor()
		if sessions != c.sessions || len(fetched) != c.fetched {
			t.Errorf("%d sessions for 30 filters, want %d; %d events fetched", sessions, c.sessions, len(fetched))
		}
		reqs = slices.DeleteFunc(reqs, func(filters []nostr.Filter) bool { return filters[0].Until != nil })
		if c.sessions == 1 && len(reqs) != 1 { // layer 1; and it is looked whether something is hidden
			t.Errorf("asked for %d filters by REQ", len(reqs))
		}
	})
}

// TestLayer4TakesFewNames: what is below root events is asked for when all else has come, in one
// session about everything, and of many few are named live. Until it has come, all else is told to
// be confirmed, so that a next connection does not begin afresh.
func TestLayer4TakesFewNames(t *testing.T) {
	each(t, map[string]bool{"while all else comes": false, "when all else has come": true}, func(t *testing.T, p *play, later bool) {
		p.session.Rules.MaxFilters = 70
		r, replies, away := p.reconciles(20, tagged(20)...), named("f%063x", 1000), false
		r.away = func() bool { return away } // ingest
		r.begin()
		all := session.Set{Full: []string{repository}, Roots: roots(10)}
		r.want(1, all)
		if later {
			sleep(2 * time.Second)
			r.with(func() { away = true })
		}
		all.Replies = replies
		r.with(func() { r.current = session.Wanted{Items: all, Mark: session.MarkAt(2, 5)} })
		r.changed <- struct{}{}
		if later {
			sleep(time.Second)
			if st := r.status(); st.Confirmed != (session.Mark{Target: 2, Log: 5}) {
				t.Errorf("confirmed without layer 4: %+v", st.Confirmed)
			}
			r.with(func() { away = false })
		}
		sleep(time.Minute)
		if r.complete(2); r.status().Confirmed != session.MarkAt(2, 5) {
			t.Errorf("in the end confirmed: %+v", r.status().Confirmed)
		}
		names := func(filters []nostr.Filter) (n int) {
			for _, f := range filters {
				for _, list := range f.Tags {
					n += len(slices.DeleteFunc(slices.Clone(list), func(id string) bool { return !slices.Contains(replies, id) }))
				}
			}
			return n
		}
		if n := names(slices.Collect(maps.Values(r.filters))) + names(slices.Concat(r.reqs...)); n > 0 {
			t.Errorf("%d names of the past", n)
		}
		if n := names(r.open(true)); n != 3*300 {
			t.Errorf("%d names live", n)
		}
	})
}

// TestLayer4IsAskedForTogether: replies that become known while a walk goes on are named in one
// request, when all has come that it brought.
func TestLayer4IsAskedForTogether(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.with(func() { p.hold, p.stored = true, issues("30617:aa:000", 1) })
		p.begin()
		for n := range 4 {
			all := manyRepos(0, 1)
			all.Replies = roots(n)
			p.want(1, all)
			sleep(time.Minute)
		}
		p.release(nil)
		sleep(time.Minute)
		replies := 0
		for _, f := range p.asksFor {
			if !f.LimitZero && len(f.Tags["e"]) > 0 && f.Until == nil {
				replies++
			}
		}
		if replies != 1 {
			t.Errorf("%d requests name replies", replies)
		}
	})
}

// faster is an intake to which others bring everything first.
type faster struct{ session.Intake }

func (faster) Known(string) bool { return true }

// TestLayer1ByNegentropy asks for what is known of it by NIP-77, and by REQ for what is older only. No
// wake is missed where all that a relay names has come from elsewhere by the time when it would be fetched.
func TestLayer1ByNegentropy(t *testing.T) {
	each(t, map[string]int{"alone": 1, "another relay is faster": 0}, func(t *testing.T, p *play, want int) {
		r := p.reconciles(1, event(30617, 7), event(30617, 5))
		if want == 0 {
			r.session.Intake = faster{r.session.Intake}
		}
		r.begin()
		sleep(rules.Calm + time.Second)
		r.complete(0)
		sessions, reqs, fetched := r.askedFor()
		whole := slices.ContainsFunc(reqs, func(filters []nostr.Filter) bool { return filters[0].Until == nil })
		if sessions != 1 || whole || len(fetched) != want {
			t.Errorf("%d sessions, by REQ %v, by id %v", sessions, reqs, fetched)
		}
	})
}

// TestOddNegentropy: however a relay handles NIP-77, everything comes: by id where it reconciles,
// and by REQ where it does not.
func TestOddNegentropy(t *testing.T) {
	says := func(kind wire.Kind, reason string, when func(n int) bool) func(*reconciling) {
		return func(r *reconciling) {
			r.instead = func(n int, _ nostr.Filter) *wire.Message {
				if !when(n) {
					return nil
				}
				return &wire.Message{Kind: kind, Reason: reason}
			}
		}
	}
	always := func(int) bool { return true }
	type row struct {
		relay func(r *reconciling)
		byREQ bool
	}
	each(t, map[string]row{
		"too many": {func(r *reconciling) {
			r.instead = func(_ int, f nostr.Filter) *wire.Message {
				if len(r.set(f, false)) > 20 {
					return &wire.Message{Kind: wire.NegErr, Reason: "blocked: too many query results"}
				}
				return nil
			}
		}, false},
		"it forgets":              {says(wire.NegErr, "closed: took too long", func(n int) bool { return n%2 == 0 }), false},
		"it wants quiet":          {says(wire.NegErr, "rate-limited: later", func(n int) bool { return n == 1 }), false},
		"it wants quiet for ever": {says(wire.NegErr, "rate-limited: too many requests", always), true},
		"and says so by a notice": {says(wire.Notice, "rate-limited: later", always), true},
		"garbage":                 {says(wire.NegMsg, "", always), true},
		"refused":                 {says(wire.NegErr, "error: not here", always), true},
		"closed":                  {says(wire.Closed, "error: not here", always), true},
		"silence":                 {says("", "", always), true},
		"a notice":                {says(wire.Notice, "unknown command", always), true},
		"no end":                  {func(r *reconciling) { r.endless = true }, true},
		"ingest is away for a moment": {func(r *reconciling) {
			began := time.Now()
			r.away = func() bool { return time.Since(began) < 3*time.Second }
		}, false},
	}, func(t *testing.T, p *play, tc row) {
		var stored []*nostr.Event
		for i := range 100 {
			stored = append(stored, event(1621, nostr.Now()-nostr.Timestamp(i)*86_400, nostr.Tag{"a", repository}, nostr.Tag{"A", repository}, nostr.Tag{"q", repository}))
		}
		r := p.reconciles(0, stored...)
		for i, ev := range stored {
			r.accepted[ev.ID] = i%5 < 3
		}
		tc.relay(r)
		r.begin()
		r.wants(1)
		r.inSync(1, 20*time.Minute)
		if _, reqs, fetched := r.askedFor(); (len(fetched) < 40) != tc.byREQ && !r.endless {
			t.Errorf("asked by REQ for %v, %d events fetched by id", reqs, len(fetched))
		}
		if slices.ContainsFunc(r.statuses, func(st session.Status) bool { return st.Connection == session.Incomplete }) && !tc.byREQ {
			t.Error("the sync was told to have failed")
		}
	})
}

// TestShared: what one relay of a worker has brought is not fetched from another that has it too,
// and what only that one has is. No relay that brings nothing holds up another for long.
func TestShared(t *testing.T) {
	type row struct {
		prepare func(first, second *reconciling)
		waits   time.Duration // nothing is asked of the second before
		fetched int           // from the second
	}
	each(t, map[string]row{
		"the first brings all but one": {func(first, second *reconciling) { first.stored = second.stored[:19] }, 100 * time.Millisecond, 1},
		"the first is silent":          {func(first, _ *reconciling) { first.mute = true }, 10 * time.Second, 0},
		"the first goes":               {func(first, _ *reconciling) { first.mute = true; time.AfterFunc(2*time.Second, first.stop) }, time.Second, 0},
		"the first shows nothing":      {func(first, _ *reconciling) { first.stored = nil }, 0, 0},
		"the second does not reconcile": {func(_, second *reconciling) {
			second.instead = func(int, nostr.Filter) *wire.Message {
				return &wire.Message{Kind: wire.NegErr, Reason: "error: not here"}
			}
		}, 0, 0},
	}, func(t *testing.T, p *play, tc row) {
		events := tagged(20)
		first, second := newPlay(t).reconciles(0, events...), p.reconciles(0, events...)
		second.session.Negentropy.Coordinator = first.session.Negentropy.Coordinator
		tc.prepare(first, second)
		first.begin()
		first.wants(1)
		second.begin()
		second.wants(1)
		if sleep(tc.waits); tc.waits > 0 && second.walked() {
			t.Error("both relays were asked for the same")
		}
		accepted := map[string]bool{}
		first.with(func() { maps.Copy(accepted, first.accepted) })
		second.with(func() { maps.Copy(second.accepted, accepted) })
		second.inSync(1, 30*time.Second)
		if _, _, fetched := second.askedFor(); len(fetched) != tc.fetched {
			t.Errorf("%d events were fetched from the second relay", len(fetched))
		}
		first.stop()
	})
}

// TestWalksAreForgotten some time after they have ended.
func TestWalksAreForgotten(t *testing.T) {
	t.Parallel()
	var walks session.HistoryCoordinator
	now, items := time.Now(), repos("30617:aa:000")
	for _, step := range []struct {
		hours int
		ends  bool
		mine  int
	}{{0, true, 1}, {0, false, 0}, {3, false, 1}} {
		lead, _, mine, _ := walks.Take(items, now.Add(time.Duration(step.hours)*time.Hour))
		if len(mine.Full) != step.mine {
			t.Errorf("after %d hours %d items are walked through", step.hours, len(mine.Full))
		}
		if step.ends {
			lead.End(true)
		}
	}
}

// TestLeft: what is left to another connection at different times is reconciled together
// afterwards.
func TestLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := tagged(20)
		first, second := newPlay(t).reconciles(20, events...), newPlay(t).reconciles(20, events...)
		second.session.Negentropy.Coordinator, first.mute = first.session.Negentropy.Coordinator, true
		first.begin()
		second.begin()
		for n := 1; n <= 3; n++ {
			first.wants(n)
			second.wants(n)
			sleep(time.Second)
		}
		second.inSync(3, time.Minute)
		var asked []int // references in each session about them
		second.with(func() {
			for _, f := range second.filters {
				if refs := f.Tags["a"]; refs != nil {
					asked = append(asked, len(refs))
				}
			}
		})
		if !slices.Equal(asked, []int{3}) {
			t.Errorf("the second relay was asked for %v references at a time", asked)
		}
		first.stop()
		second.stop()
	})
}

// walked is whether a relay was asked for references by REQ.
func (r *reconciling) walked() bool {
	_, reqs, _ := r.askedFor()
	return slices.ContainsFunc(slices.Concat(reqs...), func(f nostr.Filter) bool { return len(f.Tags) > 0 })
}
