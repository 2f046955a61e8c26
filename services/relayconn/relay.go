package relayconn

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr/nip42"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// Rules are the numbers that concern a connection's life, all of them settings.
type Rules struct {
	Session            session.Rules
	Health             health.Rules
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
	Started time.Time // of the process; the startup delay counts from it
	JS      jetstream.JetStream
	States  jetstream.KeyValue // grasp-relays
	Guard   *netguard.Guard
	Intake  *intake.Intake
	Targets *Targets
	// Sign signs with the operator's key; fs.ErrNotExist: there is none here.
	Sign func(ev *nostr.Event) error
	// Negentropy is what relays are asked by NIP-77 with; nil: they are not.
	Negentropy *session.Negentropy
	Metrics    *Metrics
	Log        *slog.Logger
}

// life keeps the connection to one relay for as long as this worker has the claim on it: it
// connects, waits out failures, begins sessions as fresh starts or quick reconnects, and writes
// down how it stands, so that a successor goes on there. It belongs to the goroutine of run, and
// while that talks to the one of tend. It is the session's observer.
type life struct {
	*Env
	name    string // as in subjects and keys
	claimed time.Time
	url     string
	log     *slog.Logger
	target  *Wanted
	state   *stateKeeper

	health    health.Health
	seen      health.State // what was observed last
	connected time.Time    // until when the last connection held; zero: there was none
	complete  time.Time    // up to then nothing is missing of what is confirmed; zero: that is not known
	confirmed session.Set
	daily     time.Time // when the next daily start is due; it stays until that has begun
	status    session.Status
	told      atomic.Pointer[session.Status] // by the session, last
	warned    map[string]bool                // of what the operator has been warned since the last fresh start
	gaps      sync.Map                       // sources of which a gap was told on this connection
}

// Run keeps the connection to the relay of that name until ctx ends.
func (e *Env) Run(ctx context.Context, name string) error {
	l := &life{Env: e, name: name, claimed: time.Now(), warned: map[string]bool{}, log: e.Log.With("relay", name)}
	l.state = &stateKeeper{js: e.JS, kv: e.States, key: name, log: l.log}
	if err := l.state.read(ctx); err != nil {
		return err
	}
	l.resume(time.Now())
	l.target = e.Targets.Of(name)
	defer e.Metrics.forget(name)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.target.Run(ctx) })
	group.Go(func() error { return l.run(ctx) })
	return group.Wait()
}

// resume takes up what the last holder of the claim wrote down.
func (l *life) resume(now time.Time) {
	s := l.state.value
	l.state.kept = max(stateKept, l.Rules.Health.Naughty, l.Rules.Health.Max)
	l.health = health.Health{
		Rules: l.Rules.Health, Failures: s.Failures, Recovering: s.Failures > 0 || s.LastError != "", FailingSince: s.FailingSince, Naughty: s.NaughtyUntil, NextAttempt: s.NextAttempt, LastError: s.LastError,
	}
	l.seen = l.health.State(now)
	l.connected, l.complete, l.daily = s.LastConnected, s.CompleteUntil, s.NextDaily
	l.status.Confirmed = session.Mark{Target: s.Confirmed, Log: s.ConfirmedLog}
}

func (l *life) run(ctx context.Context) error {
	for known := false; !known; _, known = l.target.Now() {
		select {
		case <-l.target.Changed:
		case <-ctx.Done():
			return nil
		}
	}
	var err error
	if l.confirmed, err = l.target.Past(ctx, l.status.Confirmed); err != nil && ctx.Err() == nil {
		l.log.Warn("what was confirmed before is asked for again", "error", err)
		l.status.Confirmed = session.Mark{}
	}
	first, bootstrap := true, false
	for ctx.Err() == nil {
		l.url, bootstrap = l.target.Relay()
		if l.url == "" || nostr.RelayURL(l.url).OnDomain(l.Domain) {
			// Not a target any more, or ourselves: the claim will be taken back.
			select {
			case <-l.target.Changed:
			case <-ctx.Done():
			}
			continue
		}
		l.pause(ctx, l.wait(time.Now(), first, bootstrap))
		first = false
		l.attempt(ctx)
	}
	return nil
}

// wait is how long to stay away from the relay. When the claim is new bootstrap relays connect at
// once and the others spread out, so that a restart or a hand-over of many is no stampede.
func (l *life) wait(now time.Time, first, bootstrap bool) time.Duration {
	if first && bootstrap {
		return 0
	}
	wait := max(l.health.NextAttempt.Sub(now), l.health.Limited.Sub(now), 0)
	if first && l.Rules.StartupJitter > 0 {
		wait = max(wait, l.claimed.Add(rand.N(l.Rules.StartupJitter)).Sub(now))
	}
	return wait
}

// pause waits, and keeps metrics in step meanwhile.
func (l *life) pause(ctx context.Context, wait time.Duration) {
	due := time.NewTimer(wait)
	defer due.Stop()
	tick := time.NewTicker(l.Rules.CheckEvery)
	defer tick.Stop()
	for {
		now := time.Now()
		l.observe(now)
		if now.Sub(l.connected) > l.Rules.ReconnectWindow {
			l.confirmed = session.Set{} // the next connection is a fresh start
		}
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			return
		case <-tick.C:
		}
	}
}

// attempt connects and talks until the connection ends.
func (l *life) attempt(ctx context.Context) {
	l.status = session.Status{Connection: session.Connecting, Confirmed: l.status.Confirmed}
	l.observe(time.Now())
	dial, cancel := context.WithTimeout(ctx, l.Rules.Health.Base)
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
	l.Metrics.count(l.name, l.Metrics.attempts, "success")
	l.health = l.health.Opened(now)
	start := l.start(now)
	l.log.Info("connected", "url", l.url, "quick", start.Since != nil)
	err = l.talk(ctx, conn, start)
	l.ended(ctx, time.Now(), err)
}

// start prepares the session on a connection that was opened. A relay that was away for no longer
// than the window gets a quick reconnect, if anything is confirmed.
func (l *life) start(now time.Time) session.Start {
	start := session.Start{Delay: max(0, l.Rules.StartupDelay-now.Sub(l.Started))}
	quick := now.Sub(l.connected) <= l.Rules.ReconnectWindow && !l.confirmed.Empty()
	if quick {
		since := nostr.Timestamp(cmp.Or(l.complete, l.connected).Add(-l.Rules.ReconnectWindow).Unix())
		start.Since, start.Live, start.Confirmed, start.Mark = &since, l.connected, l.confirmed, l.status.Confirmed
	} else {
		l.status.Confirmed, l.complete = session.Mark{}, time.Time{}
		clear(l.warned)
	}
	if !quick || l.daily.IsZero() {
		l.daily = l.nextDay(now)
	}
	l.connected = now
	return start
}

func (l *life) nextDay(now time.Time) time.Time {
	return now.Add(l.Rules.DailyMin + rand.N(max(0, l.Rules.DailyMax-l.Rules.DailyMin)+1))
}

// talk runs a session on a connection until either ends.
func (l *life) talk(ctx context.Context, conn *wire.Conn, start session.Start) error {
	l.Status(l.status)
	l.gaps.Clear()
	document := make(chan wire.Stated, 1)
	s := session.New(session.Options{
		Rules: l.Rules.Session, Asker: conn, Wanted: func() session.Wanted { now, _ := l.target.Now(); return now },
		Intake: l.Intake.Open(l.url), Observer: l, Document: document, Log: l.log,
		Negentropy: l.Negentropy, Warned: l.warned,
		Authenticate: func(ctx context.Context, challenge string) error {
			// Nothing that the relay says gets into what is signed but its challenge.
			ev := nip42.CreateUnsignedAuthEvent(challenge, "", l.url)
			if err := l.Sign(&ev); err != nil {
				return err
			}
			return conn.Auth(ctx, ev)
		},
	})
	l.confirmed = session.Set{} // the session's now
	replace(l.target.Changed, struct{}{})
	day := time.NewTimer(time.Until(l.daily))
	defer day.Stop()
	messages := make(chan wire.Message)
	var lost error // why reading has ended
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(messages) // what the relay says last is heard: it may be why it goes
		lost = conn.Read(ctx, func(m wire.Message) error {
			select {
			case messages <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		return nil
	})
	group.Go(func() error { return conn.KeepAlive(ctx) })
	group.Go(func() error { // beside the start, which does not wait for it
		d, err := wire.FetchDocument(ctx, l.Guard.HTTPClient(), l.url)
		if err == nil {
			document <- d
		}
		return nil
	})
	group.Go(func() error { return l.tend(ctx, day) })
	group.Go(func() error {
		if err := s.Run(ctx, start, messages, l.target.Changed, day.C); err != nil || ctx.Err() != nil {
			return err
		}
		return lost
	})
	err := group.Wait()
	l.confirmed = s.Confirmed()
	l.note()
	return err
}

// tend keeps what is known of the relay in step, and says when a day is over. It never waits for the
// session, which may be waiting for room for what came.
func (l *life) tend(ctx context.Context, day *time.Timer) error {
	tick := time.NewTicker(l.Rules.CheckEvery)
	defer tick.Stop()
	saved, savedAt := session.Status{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if l.note() {
				day.Reset(time.Until(l.daily))
			}
			l.held(now)
			l.observe(now)
			// A successor must find the last connection young enough, so it is written down from
			// time to time though nothing changed.
			if (l.status != saved || now.Sub(savedAt) > l.Rules.ReconnectWindow/3) && l.save(ctx) {
				saved, savedAt = l.status, now
			}
		}
	}
}

// note takes in what the session has said of itself, and reports whether a daily start has begun.
// One that is due stays so until then, on any connection and by any worker.
func (l *life) note() (begun bool) {
	st := *l.told.Load()
	if begun = st.Days != l.status.Days; begun {
		l.complete, l.daily = time.Time{}, l.nextDay(time.Now())
	}
	if st.Answered && !l.status.Answered {
		l.health = l.health.Answered()
	}
	l.status, l.health.Limited = st, st.Limited
	return begun
}

// Status implements session.Observer.
func (l *life) Status(s session.Status) { l.told.Store(&s) }

// Judged counts an event that is served now and was not before, logs a live one, and tells a gap:
// one that should have come live but was found by a later sync.
func (l *life) Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict) {
	if v.Outcome == proto.Accepted {
		l.Metrics.synced.Inc()
	}
	if source == proto.SourceLive {
		l.log.Debug("live event", "id", ev.ID, "kind", ev.Kind, "outcome", v.Outcome, "message", v.Message)
	}
	if !gap {
		return
	}
	l.Metrics.count(l.name, l.Metrics.gaps)
	if _, told := l.gaps.LoadOrStore(source, true); told {
		return
	}
	level := slog.LevelWarn
	if source == proto.SourceDaily {
		level = slog.LevelError
	}
	l.log.Log(context.Background(), level, "an event that should have come live was found later", "source", source, "id", ev.ID, "kind", ev.Kind)
}

func (l *life) failed(ctx context.Context, now time.Time, err error) {
	l.health = l.health.Failed(now, err)
	l.Metrics.count(l.name, l.Metrics.attempts, "failure")
	l.tell("connection failed", now, err)
	l.status = session.Status{Confirmed: l.status.Confirmed}
	l.save(ctx)
}

func (l *life) ended(ctx context.Context, now time.Time, err error) {
	// What was confirmed on this connection has come live until now, or until something went
	// missing, unless there was something to catch up with first.
	l.held(now)
	l.complete = cmp.Or(l.complete, l.status.Missing, now)
	if ctx.Err() != nil {
		l.health = l.health.Left(now)
		l.log.Info("connection closed", "url", l.url)
	} else {
		l.health = l.health.Dropped(now, err)
		l.tell("disconnected", now, err)
	}
	l.status = session.Status{Confirmed: l.status.Confirmed}
	l.save(context.WithoutCancel(ctx))
}

// held notes that the connection stands. Only once it has caught up with what it missed, a next one
// need not go back as far as it did.
func (l *life) held(now time.Time) {
	if l.connected = now; l.status.CaughtUp {
		l.complete = now
	}
}

// tell says why there is no connection, and for how long the relay is left alone now.
func (l *life) tell(what string, now time.Time, err error) {
	l.log.Warn(what, "url", l.url, "attempt", l.health.Failures, "again_in", max(0, l.health.NextAttempt.Sub(now)).Round(time.Second),
		"naughty", !l.health.Naughty.IsZero(), "cause", netguard.Classify(err), "error", err)
}

// save writes down how the relay stands, and says whether it could.
func (l *life) save(ctx context.Context) bool {
	now := time.Now()
	l.observe(now)
	confirmed := l.target.Confirmed(l.status.Confirmed)
	s := proto.RelayState{
		URL: l.url, Worker: l.Worker, Connection: int(l.status.Connection), Health: int(l.seen),
		Failures: l.health.Failures, FailingSince: l.health.FailingSince, LastError: l.health.LastError, NaughtyUntil: l.health.Naughty,
		NextAttempt: l.health.NextAttempt, NextDaily: l.daily, LastConnected: l.connected, CompleteUntil: l.complete,
		Confirmed: confirmed.Target, ConfirmedLog: confirmed.Log, Repos: l.status.Repos, Roots: l.status.Roots, Subscriptions: l.status.Subscriptions,
	}
	if s.NextAttempt.Before(l.health.Limited) {
		s.NextAttempt = l.health.Limited
	}
	if l.status.Connection == session.Disconnected {
		s.DisconnectedAt = l.connected
	}
	err := l.state.put(ctx, s)
	if err != nil && ctx.Err() == nil {
		l.log.Warn("the relay's state could not be written", "error", err)
	}
	return err == nil
}

// observe keeps health and metrics in step with the time, and tells what only time brings about.
func (l *life) observe(now time.Time) {
	l.health = l.health.Held(now)
	state := l.health.State(now)
	if state == health.Dead && l.seen != health.Dead {
		l.log.Error("the relay is dead: it has been failing without a break", "since", l.health.FailingSince)
	}
	l.seen = state
	if !l.health.Naughty.IsZero() && !now.Before(l.health.Naughty) {
		l.log.Info("the relay's time on the naughty list is over")
		l.health.Naughty = time.Time{}
	}
	l.Metrics.set(l.name, snapshot{
		label: l.url, connection: l.status.Connection, health: state, failures: l.health.Failures, naughty: !l.health.Naughty.IsZero(),
	})
}
