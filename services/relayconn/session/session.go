// Package session is what is said on one connection to a relay: live subscriptions, historic sync in batches, and the accounting of what has come
// and has a verdict (spec/sync.md). One goroutine owns a session; it is told of messages, of what is wanted and of verdicts, and never waits for
// anything but room among the candidates.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"golang.org/x/time/rate"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/netguard"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/layers"
	"tendril.dev/services/relayconn/wire"
)

// Connection is where a connection stands (spec/sync.md, Connection life), with the values of `ngit_sync_relay_connected`.
type Connection int

// The states.
const (
	Disconnected Connection = iota
	Connecting
	Syncing
	Connected
	Incomplete // connected_historic_sync_failures
)

// String is the state's name.
func (c Connection) String() string {
	return [...]string{"disconnected", "connecting", "syncing", "connected", "connected_historic_sync_failures"}[c]
}

// Asker puts requests to the relay; *wire.Conn is one.
type Asker interface {
	Req(ctx context.Context, sub string, filters []nostr.Filter) error
	Unsubscribe(ctx context.Context, sub string) error
}

// Offerer takes candidates; *candidates.Sender is one.
type Offerer interface {
	Offer(ctx context.Context, c candidates.Candidate) error
}

// Rules are the numbers of spec/sync.md, all of them settings.
type Rules struct {
	PageLimit       int           // of a historic REQ
	AtOnce          int           // historic subscriptions open at once
	MaxFilters      int           // more live filters than this are consolidated
	Settle          time.Duration // syncing becomes connected when nothing was pending for so long
	Silence         time.Duration // a historic subscription that is silent for so long has failed
	ConsolidateWait time.Duration // consolidation waits so long for pending batches
	Cooldown        time.Duration // quiet after the relay told us that we ask too much
}

// Wanted is what should be asked beyond layer 1, and the revision of the target that says so.
type Wanted struct {
	Items    items.Set
	Revision uint64
}

// Status is how the session stands.
type Status struct {
	Connection    Connection
	Repos, Roots  int // confirmed
	Subscriptions int // open
	// Confirmed is the revision of the target of which everything was asked for and came; 0: none yet.
	Confirmed uint64
	// CaughtUp: what a start asks for has come or failed, and nothing is Missing. A next start need not go further back than this connection.
	CaughtUp bool
	// Missing is since when what comes live is not all there, because the relay closed a live subscription; zero: it is all there.
	Missing time.Time
	// Days counts the daily fresh starts.
	Days int
	// Limited is until when the relay wants quiet.
	Limited time.Time
}

// Observer hears what a session does. Its methods are called from several goroutines and must not block.
type Observer interface {
	Status(Status)
	// Judged is called for every event of this relay that was new to the service. A gap is one that should have come live before.
	Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict)
}

// Options are what a session needs.
type Options struct {
	Relay    string // normalised URL
	Rules    Rules
	Asker    Asker
	Offerer  Offerer
	Known    func(id string) bool // accepted already: need not be offered
	Observer Observer
	Log      *slog.Logger
}

// Start says how a session begins.
type Start struct {
	// Since is what a quick reconnect asks the past from; nil: a fresh start.
	Since     *nostr.Timestamp
	Whole     bool          // layer 1 is asked for without Since all the same, because an earlier start was cut off
	Live      time.Time     // until when the connection before held: older events should have come then
	Confirmed items.Set     // of a quick reconnect
	Revision  uint64        // of the target that says so, as in Status
	Delay     time.Duration // holds back historic sync
}

// Session is the state of one connection.
type Session struct {
	Options
	ledger  *ledger
	live    map[string]*subscription
	opening map[string]*subscription // live ones that the relay has not answered yet: whether it has read of them is not known
	shut    map[string]*subscription // live ones that the relay closed, until they are open again
	leaving map[string]*subscription // live ones of before, to be closed when those that replace them are open
	left    map[string]*subscription // live ones that were closed last; their events may still be on their way
	past    map[string]*subscription // historic, at most Rules.AtOnce
	newest  *subscription            // live of layers 2 and 3, which may have room
	perReq  int                      // how many filters a live subscription may have
	nextID  int
	turns   int // live subscriptions asked for, again counted again

	wanted            Wanted
	confirmed, failed items.Set
	batches           []*batch
	queue             []*task // historic, not asked yet
	due               plan    // what the diff found and could not be asked for yet
	dayDue            bool    // so could a daily start
	days              int     // daily starts that were made

	hold    time.Time // no historic request before
	limited time.Time // no request at all before

	consolidateBy time.Time // consolidation waits for batches until then; zero: none waits
	quietSince    time.Time // no batch has been pending since; zero: one is
	incomplete    bool      // a batch has failed since the start
	gaveUp        time.Time // since when something is not live that is not asked for again before the next start; zero: nothing
	status        Status

	invalid int
	warned  map[string]bool
	useless *rate.Limiter
}

// subscription is one REQ that is open at the relay.
type subscription struct {
	id      string
	filters []nostr.Filter

	asked time.Time
	heard time.Time // last message

	task *task // of historic sync; nil: live

	// Of live ones:
	first    bool      // of layer 1, which consolidation leaves alone
	held     bool      // the relay has had it open
	turn     int       // counts in the order in which they were asked for
	shuts    int       // how often the relay closed it without asking for quiet
	shutAt   time.Time // when the relay closed it, if it is not open again
	reopenAt time.Time // when to ask for it again; zero: it is open, or was asked for
}

// plan is what to ask for, why, and with which filters.
type plan struct {
	items   items.Set
	filters []nostr.Filter
	cause   cause
}

const (
	// maxInvalid is how many events with a wrong id or signature, or that nobody asked for, a relay may send on one connection.
	maxInvalid = 100
	// uselessRate and uselessBurst bound how many messages a second are taken that bring nothing: with more, the relay is read more slowly.
	uselessRate, uselessBurst = 5000, 20_000
)

// New makes a session; Run begins it.
func New(o Options) *Session {
	return &Session{
		Options: o, ledger: newLedger(), live: map[string]*subscription{}, opening: map[string]*subscription{}, shut: map[string]*subscription{},
		perReq: filtersPerReq, leaving: map[string]*subscription{}, left: map[string]*subscription{}, past: map[string]*subscription{}, warned: map[string]bool{},
		useless: rate.NewLimiter(uselessRate, uselessBurst),
	}
}

// Confirmed is what was asked for and came. Call it after Run has returned.
func (s *Session) Confirmed() items.Set { return s.confirmed }

// Run talks until ctx or the messages end. A value on daily begins a fresh start without a disconnect.
func (s *Session) Run(ctx context.Context, start Start, messages <-chan wire.Message, wanted <-chan Wanted, daily <-chan time.Time) error {
	if err := s.begin(ctx, start); err != nil {
		return ignoreEnd(ctx, err)
	}
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		now := time.Now()
		if err := s.pump(ctx, now); err != nil {
			return ignoreEnd(ctx, err)
		}
		wake.Reset(time.Until(now.Add(s.untilNext(now)))) // what becomes due while pump works is due then
		var err error
		select {
		case <-ctx.Done():
			return nil
		case m, open := <-messages:
			if !open {
				return nil
			}
			err = s.hear(ctx, m)
		case w := <-wanted:
			s.want(w)
		case <-daily:
			s.dayDue = true
		case <-s.ledger.changed:
		case <-wake.C:
		}
		if err != nil {
			return ignoreEnd(ctx, err)
		}
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// begin opens layer 1, and with a quick reconnect what was confirmed before.
func (s *Session) begin(ctx context.Context, start Start) error {
	s.hold = time.Now().Add(start.Delay)
	back := cause{source: proto.SourceReconnect, lane: proto.LaneSyncHistoric, liveUntil: start.Live}
	if start.Since != nil {
		s.confirmed, s.status.Confirmed = start.Confirmed, start.Revision
	}
	if err := s.openLive(ctx, layers.One(), true); err != nil {
		return err
	}
	if start.Since == nil || start.Whole {
		s.enqueue(plan{filters: layers.One(), cause: startup}, nil)
	} else {
		s.enqueue(plan{filters: layers.One(), cause: back}, start.Since)
	}
	if !s.confirmed.Empty() {
		filters := layers.TwoAndThree(s.confirmed)
		if err := s.openLive(ctx, filters, false); err != nil {
			return err
		}
		s.enqueue(plan{filters: filters, cause: back}, start.Since)
	}
	s.report(Syncing)
	return nil
}

// restart is the daily fresh start: everything is asked for anew on the connection that stands.
func (s *Session) restart(ctx context.Context, now time.Time) error {
	s.dayDue = false
	s.days++
	for _, sub := range s.past {
		if err := s.stop(ctx, sub); err != nil {
			return err
		}
	}
	s.batches, s.queue, s.consolidateBy = nil, nil, time.Time{}
	s.confirmed, s.failed, s.incomplete, s.gaveUp, s.status.Confirmed = items.Set{}, items.Set{}, false, time.Time{}, 0
	for _, sub := range s.live {
		s.leave(sub)
	}
	daily := cause{source: proto.SourceDaily, lane: proto.LaneSyncDaily, liveUntil: now}
	if err := s.openLive(ctx, layers.One(), true); err != nil {
		return err
	}
	s.enqueue(plan{filters: layers.One(), cause: daily}, nil)
	s.plan(daily)
	return s.request(ctx, nil)
}

// want takes in what the target says now.
func (s *Session) want(w Wanted) {
	s.wanted = w
	s.confirmed, s.failed = items.Only(s.confirmed, w.Items), items.Only(s.failed, w.Items)
	s.plan(startup)
}

// plan works out what is wanted and was not asked for yet: the three-way diff, with which everything beyond layer 1 begins.
func (s *Session) plan(why cause) {
	asked := s.failed
	for _, b := range s.batches {
		asked = items.Union(asked, b.items)
	}
	fresh := items.New(s.wanted.Items, asked, s.confirmed)
	s.due = plan{items: fresh, filters: layers.TwoAndThree(fresh), cause: why}
}

// add asks for what was planned, as soon as the relay and consolidation allow it.
func (s *Session) add(ctx context.Context, now time.Time) error {
	if s.due.items.Empty() {
		s.consolidateBy = time.Time{}
		return nil
	}
	if !s.mayAsk(now) {
		return nil
	}
	if !s.crowded() {
		return s.request(ctx, nil)
	}
	if !s.mayConsolidate(now) {
		return nil
	}
	fewer, err := s.consolidate(ctx)
	if err != nil {
		return err
	}
	return s.request(ctx, fewer)
}

// request asks for what was planned, live and historic, and for what else is to be live.
func (s *Session) request(ctx context.Context, live []nostr.Filter) error {
	p := s.due
	s.due = plan{}
	if err := s.openLive(ctx, slices.Concat(live, p.filters), false); err != nil {
		return err
	}
	if !p.items.Empty() {
		s.enqueue(p, nil)
	}
	return nil
}

// mayAsk reports whether something new may be asked for. While a live subscription is being opened, nothing is: what comes from now on must be
// open before the past is asked for, or something falls in between, in whatever order a relay does what it is asked. Nothing waits for one that the relay
// has refused before: what falls in between is made up for once it takes that.
func (s *Session) mayAsk(now time.Time) bool {
	for id := range s.opening {
		if s.shut[id] == nil {
			return false
		}
	}
	return !now.Before(s.limited)
}

// pump does what has become due: batches that have ended, silent subscriptions, requests that may now be made, the state. It is called after
// every message, so it looks at what is open and not at everything that is wanted.
func (s *Session) pump(ctx context.Context, now time.Time) error {
	if err := s.expire(ctx, now); err != nil {
		return err
	}
	s.settleBatches()
	if s.dayDue && !now.Before(s.limited) {
		if err := s.restart(ctx, now); err != nil {
			return err
		}
	}
	// First what makes room at the relay. The past before what is new: where there is always something new, the past would never come.
	if err := errors.Join(s.closeLeft(ctx, now), s.reopen(ctx, now), s.ask(ctx, now), s.add(ctx, now)); err != nil {
		return err
	}
	if len(s.batches) > 0 || !s.due.items.Empty() {
		s.quietSince = time.Time{}
		s.report(Syncing)
		return nil
	}
	if s.quietSince.IsZero() {
		s.quietSince = now
	}
	switch {
	case now.Sub(s.quietSince) < s.Rules.Settle:
		s.report(Syncing)
	case s.incomplete:
		s.report(Incomplete)
	default:
		s.report(Connected)
	}
	return nil
}

// untilNext is how long nothing becomes due by itself.
func (s *Session) untilNext(now time.Time) time.Duration {
	next := now.Add(time.Hour)
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	for _, sub := range s.past {
		sooner(s.patience(sub))
	}
	for _, sub := range s.opening {
		sooner(sub.asked.Add(s.Rules.Silence))
	}
	for _, sub := range s.shut {
		sooner(sub.reopenAt)
	}
	sooner(s.hold)
	sooner(s.limited)
	sooner(s.consolidateBy)
	if !s.quietSince.IsZero() {
		sooner(s.quietSince.Add(s.Rules.Settle))
	}
	return next.Sub(now)
}

// report tells the observer of a status that is not the one told before.
func (s *Session) report(c Connection) {
	st := Status{
		Connection: c, Repos: s.confirmed.Repos(), Roots: len(s.confirmed.Roots), Subscriptions: len(s.live) - len(s.shut) + len(s.leaving) + len(s.past),
		Confirmed: s.status.Confirmed, Missing: s.gaveUp, Days: s.days, Limited: s.limited,
	}
	for _, sub := range s.shut {
		st.Missing = earlier(st.Missing, sub.shutAt)
	}
	caughtUp, allAsked := true, s.due.items.Empty() && s.failed.Empty()
	for _, b := range s.batches {
		allAsked = allAsked && b.items.Empty()
		caughtUp = caughtUp && !b.items.Empty()
		st.Missing = earlier(st.Missing, b.cause.missing)
	}
	st.CaughtUp = caughtUp && st.Missing.IsZero()
	if allAsked && s.wanted.Revision != 0 {
		st.Confirmed = s.wanted.Revision
		s.confirmed = s.wanted.Items // the same, but so it is in memory once
	}
	if st != s.status {
		s.status = st
		s.Observer.Status(st)
	}
}

// earlier gives the earlier of two times; zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// warn tells the operator of what this relay does once for each cause, not for each time.
func (s *Session) warn(cause, message string, args ...any) {
	level := slog.LevelWarn
	if s.warned[cause] {
		level = slog.LevelDebug
	}
	s.warned[cause] = true
	s.Log.Log(context.Background(), level, message, args...)
}

// odd counts what a relay should not have sent.
func (s *Session) odd(what string) error {
	s.warn("odd", "the relay sends what it should not", "what", what)
	if s.invalid++; s.invalid > maxInvalid {
		return &netguard.ProtocolError{Err: fmt.Errorf("%d events that it should not have sent, the last: %s", s.invalid, what)}
	}
	return nil
}
