// Package relay keeps the connection to one relay for as long as this worker has the claim on it: connects, waits out failures, begins sessions as
// fresh starts or quick reconnects, and writes down how it stands, so that a successor goes on there (spec/sync.md, Connection life and Health).
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nip34"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/items"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/targets"
	"tendril.dev/services/relayconn/wire"
)

// Rules are the numbers of spec/sync.md that concern a connection's life, all of them settings.
type Rules struct {
	Session            session.Rules
	Health             health.Rules
	ConnectTimeout     time.Duration
	ReconnectWindow    time.Duration // away for no longer: quick reconnect
	DailyMin, DailyMax time.Duration
	StartupJitter      time.Duration
	StartupDelay       time.Duration
	CheckEvery         time.Duration
	MaxMessage         int64 // bytes
}

// Env is what all relays of a worker share.
type Env struct {
	Rules   Rules
	Domain  string // our own: never connected to
	Worker  string
	Started time.Time // of the process
	JS      jetstream.JetStream
	States  jetstream.KeyValue // grasp-relays
	Guard   *netguard.Guard
	Offerer session.Offerer
	Known   func(id string) bool
	Metrics *Metrics
	Log     *slog.Logger
}

// life is what is known of one relay while the claim is held. It belongs to the goroutine of Run.
type life struct {
	*Env
	name   string // as in subjects and keys
	url    string
	log    *slog.Logger
	target *targets.Follower
	state  *stateKeeper

	health         health.Health
	confirmed      items.Set
	lastConnected  time.Time
	disconnectedAt time.Time
	daily          time.Time // when the next daily start is due
	status         session.Status
}

// Run keeps the connection to the relay of that name until ctx ends.
func (e *Env) Run(ctx context.Context, name string) error {
	l := &life{Env: e, name: name, log: e.Log.With("relay", name)}
	var err error
	if l.state, err = openState(ctx, e.States, name); err != nil {
		return err
	}
	l.resume()
	l.target = targets.NewFollower(l.state.value.ConfirmedRevision)
	defer e.Metrics.forget(name)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.target.Run(ctx, e.JS, name, l.log) })
	group.Go(func() error { return l.run(ctx) })
	err = group.Wait()
	l.save(context.WithoutCancel(ctx))
	return err
}

// resume takes up what the last holder of the claim wrote down.
func (l *life) resume() {
	s := l.state.value
	l.health = health.Health{Failures: s.Failures, FailingSince: s.FailingSince, NextAttempt: s.NextAttempt, LastError: s.LastError}
	l.lastConnected = s.LastConnected
	l.disconnectedAt = s.LastConnected
	l.status.Confirmed = s.ConfirmedRevision
}

func (l *life) run(ctx context.Context) error {
	select {
	case <-l.target.Read():
	case <-ctx.Done():
		return nil
	}
	l.confirmed = items.Of(l.target.Past())
	first := true
	for {
		t, _ := l.target.Current()
		l.url = t.URL
		if !t.Exists() || nip34.RelayURL(t.URL).OnDomain(l.Domain) {
			// Not a target any more, or ourselves: the claim will be taken back.
			select {
			case <-l.target.Changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err := l.pause(ctx, l.wait(time.Now(), first, t.Bootstrap)); err != nil {
			return nil
		}
		first = false
		l.attempt(ctx)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// wait is how long to stay away from the relay. At a start of the process bootstrap relays connect at once and the others spread out, so that a
// restart is no stampede.
func (l *life) wait(now time.Time, first, bootstrap bool) time.Duration {
	if first && bootstrap {
		return 0
	}
	wait := max(l.health.NextAttempt.Sub(now), l.health.Limited.Sub(now), 0)
	if first && now.Sub(l.Started) < l.Rules.StartupJitter {
		wait += rand.N(l.Rules.StartupJitter)
	}
	return wait
}

// pause waits, and keeps metrics in step meanwhile.
func (l *life) pause(ctx context.Context, wait time.Duration) error {
	due := time.NewTimer(wait)
	defer due.Stop()
	tick := time.NewTicker(l.Rules.CheckEvery)
	defer tick.Stop()
	for {
		l.observe(time.Now())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			return nil
		case <-tick.C:
		}
	}
}

// attempt connects and talks until the connection ends.
func (l *life) attempt(ctx context.Context) {
	l.status = session.Status{Connection: session.Connecting, Confirmed: l.status.Confirmed}
	l.observe(time.Now())
	dial, cancel := context.WithTimeout(ctx, l.Rules.ConnectTimeout)
	conn, err := wire.Dial(dial, l.Guard, l.url, l.Rules.MaxMessage)
	cancel()
	now := time.Now()
	if err != nil {
		if ctx.Err() == nil {
			l.failed(ctx, now, err)
		}
		return
	}
	defer conn.Close()
	l.Metrics.attempts.WithLabelValues(l.name, "success").Inc()
	l.health = l.health.Opened(now)
	start := l.start(now)
	l.log.Info("connected", "url", l.url, "quick", start.Since != nil)
	err = l.talk(ctx, conn, start)
	l.ended(ctx, time.Now(), err)
}

// start decides between a fresh start and a quick reconnect.
func (l *life) start(now time.Time) session.Start {
	away := now.Sub(l.disconnectedAt)
	if l.lastConnected.IsZero() || away > l.Rules.ReconnectWindow {
		l.confirmed = items.Set{}
		start := session.Start{}
		if now.Sub(l.Started) < l.Rules.StartupDelay {
			start.Delay = l.Rules.StartupDelay - now.Sub(l.Started)
		}
		l.daily = now.Add(l.Rules.DailyMin + rand.N(l.Rules.DailyMax-l.Rules.DailyMin+1))
		return start
	}
	if l.daily.IsZero() {
		l.daily = now.Add(l.Rules.DailyMin + rand.N(l.Rules.DailyMax-l.Rules.DailyMin+1))
	}
	since := nostr.Timestamp(l.lastConnected.Add(-l.Rules.ReconnectWindow).Unix())
	return session.Start{Since: &since, Confirmed: l.confirmed}
}

func (l *life) failed(ctx context.Context, now time.Time, err error) {
	was := l.health.State(l.Rules.Health, now)
	l.health = l.health.Failed(l.Rules.Health, now, err)
	l.Metrics.attempts.WithLabelValues(l.name, "failure").Inc()
	cause := netguard.Classify(err)
	l.log.Warn("connection failed", "url", l.url, "attempt", l.health.Failures, "again_in", l.health.NextAttempt.Sub(now).Round(time.Second), "cause", cause, "error", err)
	if l.health.State(l.Rules.Health, now) == health.Dead && was != health.Dead {
		l.log.Error("the relay is dead: it has been failing for a day", "since", l.health.FailingSince)
	}
	l.status = session.Status{Confirmed: l.status.Confirmed}
	l.save(ctx)
}

func (l *life) ended(ctx context.Context, now time.Time, err error) {
	l.lastConnected, l.disconnectedAt = now, now
	l.health = l.health.Dropped(l.Rules.Health, now, err)
	l.status = session.Status{Confirmed: l.status.Confirmed}
	l.save(context.WithoutCancel(ctx))
	if ctx.Err() == nil {
		l.log.Warn("disconnected", "url", l.url, "again_in", max(0, l.health.NextAttempt.Sub(now)).Round(time.Second), "error", err)
	}
}

// save writes down how the relay stands.
func (l *life) save(ctx context.Context) {
	now := time.Now()
	l.observe(now)
	s := l.state.value
	s.URL, s.Worker = l.url, l.Worker
	s.Connection, s.Health = int(l.status.Connection), int(l.health.State(l.Rules.Health, now))
	s.Failures, s.FailingSince, s.LastError, s.NextAttempt = l.health.Failures, l.health.FailingSince, l.health.LastError, l.health.NextAttempt
	s.LastConnected, s.DisconnectedAt = l.lastConnected, time.Time{}
	if l.status.Connection == session.Disconnected {
		s.DisconnectedAt = l.disconnectedAt
	}
	s.ConfirmedRevision, s.Repos, s.Roots, s.Subscriptions = l.status.Confirmed, l.status.Repos, l.status.Roots, l.status.Subscriptions
	if err := l.state.put(ctx, s); err != nil && ctx.Err() == nil {
		l.log.Warn("the relay's state could not be written", "error", err)
	}
}

func (l *life) observe(now time.Time) {
	l.health = l.health.Settled(l.Rules.Health, now)
	l.Metrics.set(l.name, snapshot{
		connection: l.status.Connection, health: l.health.State(l.Rules.Health, now), failures: l.health.Failures, naughty: now.Before(l.health.Naughty),
	})
}

// errEnded: the session ended without an error of its own.
var errEnded = errors.New("the relay closed the connection")

// talk runs a session on a connection until either ends.
func (l *life) talk(ctx context.Context, conn *wire.Conn, start session.Start) error {
	group, ctx := errgroup.WithContext(ctx)
	o := &observer{life: l, log: l.log, since: l.lastConnected, statuses: make(chan session.Status, 1)}
	s := session.New(session.Options{
		Relay: l.url, Rules: l.Rules.Session, Asker: conn, Offerer: l.Offerer, Known: l.Known, Observer: o, Log: l.log,
	})
	messages, wanted, daily := make(chan wire.Message), make(chan session.Wanted), make(chan time.Time)
	group.Go(func() error {
		return conn.Read(ctx, func(m wire.Message) error {
			select {
			case messages <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	group.Go(func() error { return conn.KeepAlive(ctx) })
	group.Go(func() error {
		if err := s.Run(ctx, start, messages, wanted, daily); err != nil {
			return fmt.Errorf("session: %w", err)
		}
		return errEnded
	})
	group.Go(func() error { return l.tend(ctx, o, wanted, daily) })
	err := group.Wait()
	l.confirmed = s.Confirmed()
	return err
}

// tend tells the session what is wanted and when a day is over, and keeps what is known of the relay in step.
func (l *life) tend(ctx context.Context, o *observer, wanted chan<- session.Wanted, daily chan<- time.Time) error {
	tick := time.NewTicker(l.Rules.CheckEvery)
	defer tick.Stop()
	day := time.NewTimer(time.Until(l.daily))
	defer day.Stop()
	var next session.Wanted
	var out chan<- session.Wanted
	take := func() {
		t, revision := l.target.Current()
		next, out = session.Wanted{Items: items.Of(t), Revision: revision}, wanted
	}
	take()
	saved, savedAt := session.Status{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.target.Changed:
			take()
		case out <- next:
			out = nil
		case l.status = <-o.statuses:
			l.health.Limited = l.status.Limited
			l.observe(time.Now())
		case <-day.C:
			l.daily = time.Now().Add(l.Rules.DailyMin + rand.N(l.Rules.DailyMax-l.Rules.DailyMin+1))
			day.Reset(time.Until(l.daily))
			select {
			case daily <- time.Now():
			case <-ctx.Done():
			}
		case now := <-tick.C:
			l.lastConnected = now
			l.observe(now)
			// A successor must find the last connection young enough, so it is written down from time to time though nothing changed.
			if l.status != saved || now.Sub(savedAt) > l.Rules.ReconnectWindow/3 {
				saved, savedAt = l.status, now
				l.save(ctx)
			}
		}
	}
}
