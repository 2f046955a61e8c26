// Package session is what is said on one connection to a relay: live subscriptions, historic sync in batches, and the accounting of what has come
// and has a verdict (spec/sync.md). One goroutine owns a session; it is told of messages, of what is wanted and of verdicts, and never waits for
// anything but room among the candidates.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nbd-wtf/go-nostr"

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
	// Limited is until when the relay wants quiet.
	Limited time.Time
}

// Observer hears what a session does. Its methods are called from several goroutines and must not block.
type Observer interface {
	Status(Status)
	// Judged is called for every event of this relay that was new to the service.
	Judged(ev *nostr.Event, source proto.Source, v proto.Verdict)
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
	Confirmed items.Set     // of a quick reconnect
	Delay     time.Duration // holds back historic sync
}

// Session is the state of one connection.
type Session struct {
	Options
	ledger *ledger
	subs   map[string]*subscription
	nextID int

	wanted            Wanted
	confirmed, failed items.Set
	batches           []*batch
	queue             []*task // historic, not asked yet

	lane    proto.Lane
	source  proto.Source
	hold    time.Time // no historic request before
	limited time.Time // no request at all before

	consolidateBy time.Time // consolidation waits for batches until then; zero: none waits
	quietSince    time.Time // no batch has been pending since; zero: one is
	incomplete    bool      // a batch has failed since the start
	status        Status
	invalid       int
}

// subscription is one REQ that is open at the relay.
type subscription struct {
	id      string
	filters []nostr.Filter
	task    *task     // of historic sync; nil: live
	first   bool      // live of layer 1, which consolidation leaves alone
	heard   time.Time // last message, of historic ones
	shut    bool      // live, closed by the relay, to be opened again
	shuts   int       // how often that was so
}

// maxInvalid is how many events with a wrong id or signature, or that nobody asked for, a relay may send on one connection.
const maxInvalid = 100

// New makes a session; Run begins it.
func New(o Options) *Session {
	return &Session{Options: o, ledger: newLedger(), subs: map[string]*subscription{}}
}

// Confirmed is what was asked for and came. Call it after Run has returned.
func (s *Session) Confirmed() items.Set { return s.confirmed }

// Run talks until ctx or the messages end. A value on daily begins a fresh start without a disconnect.
func (s *Session) Run(ctx context.Context, start Start, messages <-chan wire.Message, wanted <-chan Wanted, daily <-chan time.Time) error {
	if err := s.begin(ctx, start); err != nil {
		return err
	}
	for {
		if err := s.pump(ctx, time.Now()); err != nil {
			return ignoreEnd(ctx, err)
		}
		wake := time.NewTimer(s.untilNext(time.Now()))
		var err error
		select {
		case <-ctx.Done():
			wake.Stop()
			return nil
		case m, open := <-messages:
			if !open {
				wake.Stop()
				return nil
			}
			err = s.hear(ctx, m)
		case w := <-wanted:
			err = s.want(ctx, w)
		case <-daily:
			err = s.restart(ctx)
		case <-s.ledger.changed:
		case <-wake.C:
		}
		wake.Stop()
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
	now := time.Now()
	s.hold = now.Add(start.Delay)
	s.lane, s.source = proto.LaneSyncHistoric, proto.SourceStartup
	if start.Since != nil {
		s.source = proto.SourceReconnect
		s.confirmed = start.Confirmed
	}
	if err := s.openLive(ctx, layers.One(), true); err != nil {
		return err
	}
	s.enqueue(items.Set{}, layers.One(), start.Since)
	if !s.confirmed.Empty() {
		filters := layers.TwoAndThree(s.confirmed)
		if err := s.openLive(ctx, filters, false); err != nil {
			return err
		}
		s.enqueue(items.Set{}, filters, start.Since)
	}
	s.report(Syncing)
	return nil
}

// restart is the daily fresh start: everything is asked for anew on the connection that stands.
func (s *Session) restart(ctx context.Context) error {
	for id := range s.subs {
		if err := s.close(ctx, id); err != nil {
			return err
		}
	}
	s.dropBatches()
	s.confirmed, s.failed, s.incomplete = items.Set{}, items.Set{}, false
	s.lane, s.source = proto.LaneSyncDaily, proto.SourceDaily
	if err := s.openLive(ctx, layers.One(), true); err != nil {
		return err
	}
	s.enqueue(items.Set{}, layers.One(), nil)
	s.quietSince = time.Time{}
	s.report(Syncing)
	return s.add(ctx, time.Now())
}

// want takes in what the target says now.
func (s *Session) want(ctx context.Context, w Wanted) error {
	s.wanted = w
	s.confirmed, s.failed = items.Only(s.confirmed, w.Items), items.Only(s.failed, w.Items)
	return s.add(ctx, time.Now())
}

// pending is what batches are about.
func (s *Session) pending() items.Set {
	var p items.Set
	for _, b := range s.batches {
		p = items.Union(p, b.items)
	}
	return p
}

// add asks for what is wanted and was not asked yet: the three-way diff, which is where everything beyond layer 1 begins.
func (s *Session) add(ctx context.Context, now time.Time) error {
	fresh := items.New(s.wanted.Items, items.Union(s.pending(), s.failed), s.confirmed)
	if fresh.Empty() {
		s.consolidateBy = time.Time{}
		return nil
	}
	filters := layers.TwoAndThree(fresh)
	if live := s.liveFilters(); live > 0 && live+len(filters) > s.Rules.MaxFilters {
		ready, err := s.consolidate(ctx, now)
		if err != nil || !ready {
			return err
		}
	}
	if err := s.openLive(ctx, filters, false); err != nil {
		return err
	}
	s.enqueue(fresh, filters, nil)
	return nil
}

// pump does what has become due: batches that have ended, silent subscriptions, requests that may now be made, the state.
func (s *Session) pump(ctx context.Context, now time.Time) error {
	if err := s.expire(ctx, now); err != nil {
		return err
	}
	s.settleBatches()
	if !s.consolidateBy.IsZero() {
		if err := s.add(ctx, now); err != nil {
			return err
		}
	}
	if err := s.ask(ctx, now); err != nil {
		return err
	}
	if len(s.batches) > 0 {
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
	for _, sub := range s.subs {
		if sub.task != nil {
			sooner(sub.heard.Add(s.Rules.Silence))
		}
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
		Connection: c, Repos: len(s.confirmed.Full) + len(s.confirmed.State), Roots: len(s.confirmed.Roots),
		Subscriptions: len(s.subs), Confirmed: s.status.Confirmed, Limited: s.limited,
	}
	if len(s.batches) == 0 && !s.incomplete && items.New(s.wanted.Items, items.Set{}, s.confirmed).Empty() {
		st.Confirmed = s.wanted.Revision
	}
	if st != s.status {
		s.status = st
		s.Observer.Status(st)
	}
}

// odd counts what a relay should not have sent.
func (s *Session) odd(what string) error {
	if s.invalid++; s.invalid == 1 {
		s.Log.Warn("the relay sends what it should not", "what", what)
	} else if s.invalid > maxInvalid {
		return &netguard.ProtocolError{Err: fmt.Errorf("%d events that it should not have sent, the last: %w", s.invalid, errors.New(what))}
	}
	return nil
}
