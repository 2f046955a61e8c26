package relayconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr/nip42"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/config"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// Rules are the numbers that concern a connection's life: settings, and what follows from them.
type Rules struct {
	config.Sync
	ReconnectWindow    time.Duration // a connection that ended so long ago is taken up again quickly
	DailyMin, DailyMax time.Duration // between two daily syncs
	Check              time.Duration // between two looks whether something is due

	Session session.Rules
	Health  health.Rules
}

// Connection is a connection to a relay; *wire.Conn is one.
type Connection interface {
	session.Asker
	Read(ctx context.Context, fn func(wire.Message) error) error
	KeepAlive(ctx context.Context) error
	Auth(ev nostr.Event)
	Publish(ev *nostr.Event)
	Close()
}

// Env is what all relays of a worker share.
type Env struct {
	Rules  Rules
	Domain string // our own: never connected to
	// Hosting says whom we may ask and prove to who we are.
	Hosting config.Rules
	// Private: we are a private service (GRASP-08). Others do not connect to one.
	Private bool
	// Hash stands for the settings that decide what is accepted, and for the form of filters. What
	// was confirmed with another one is asked for again.
	Hash    string
	Worker  string
	Started time.Time // of the process; the startup delay counts from it
	JS      jetstream.JetStream
	States  jetstream.KeyValue // grasp-relays
	// Dial connects to a relay. ctx bounds the opening only.
	Dial     func(ctx context.Context, url string) (Connection, error)
	Connects *rate.Limiter // how fast connections begin. Optional.
	// Document fetches what a relay says of itself (NIP-11).
	Document func(ctx context.Context, url string) (wire.Stated, error)
	Bans     *bans.Set // whose relays are left alone. Optional.
	Intake   *intake.Intake
	Targets  *Targets
	Fetches  *Fetches
	// Sign signs with the operator's key; fs.ErrNotExist: there is none here.
	Sign func(ev *nostr.Event) error
	// Negentropy is what relays are asked by NIP-77 with; nil: they are not.
	Negentropy *session.Negentropy
	Metrics    *Metrics
	Log        *slog.Logger
	visits     *semaphore.Weighted // walks of the past of further relays
}

// relayWorker keeps the connection to one relay for as long as this worker has the claim on it: it
// connects, waits out failures, begins sessions as fresh starts or quick reconnects, and writes
// down how it stands, so that a successor goes on there. It belongs to the goroutine of run, and
// during a session to that of saveStatePeriodically. It is the session's observer.
type relayWorker struct {
	*Env
	name    string          // as in subjects and keys
	lease   context.Context // until its end the state may be written
	claimed time.Time
	url     string
	further bool // no repository lists it
	log     *slog.Logger
	target  *Wanted
	state   *stateKeeper

	health    health.Health
	seen      health.State // what was observed last
	connected time.Time    // until when the last connection held; zero: there was none
	complete  time.Time    // up to then nothing is missing of what is confirmed; zero: that is not known
	confirmed session.Set
	doubtful  session.Set // of these; see session.Session.Doubtful
	marked    time.Time   // when what is confirmed was all that was wanted, last
	daily     time.Time   // when the next daily start is due; it stays until that has begun
	status    session.Status
	reported  atomic.Pointer[session.Status] // by the session, last
	pauses    session.Pauses
	reminders session.Reminders
	byID      <-chan []string // ids to ask the relay for
	warned    map[string]bool // of what the operator has been warned since the last fresh start
	gaps      sync.Map        // sources of which a gap was told on this connection
}

// Run keeps the connection to the relay of that claim until ctx ends.
func (e *Env) Run(ctx context.Context, held claim.Held) error {
	name := held.Key
	if _, visits := proto.VisitOf(name); visits {
		return e.visitDaily(ctx, held)
	}
	w := &relayWorker{Env: e, name: name, lease: held.Lease, claimed: time.Now(), warned: map[string]bool{},
		log: e.Log.With("relay", name)}
	w.state = &stateKeeper{js: e.JS, kv: e.States, key: name, log: w.log}
	if err := w.state.read(ctx); err != nil {
		return err
	}
	w.resume(time.Now())
	w.target = e.Targets.Of(name)
	defer e.Metrics.forget(name)
	defer w.target.Close()
	var letGo func()
	w.byID, letGo = e.Fetches.hold(name)
	defer letGo()
	err := w.target.Open(ctx)
	if err == nil {
		w.run(ctx)
	}
	return err
}

// resume takes up what the last holder of the claim wrote down.
func (w *relayWorker) resume(now time.Time) {
	s := w.state.value
	w.state.kept = max(stateKept, w.Rules.Health.NaughtyFor, w.Rules.Health.Max)
	w.health = health.Health{
		Rules: w.Rules.Health, Failures: s.Failures, Recovering: s.Failures > 0 ||
			s.LastError != "", FailingSince: s.FailingSince, NaughtyUntil: s.NaughtyUntil, NextAttempt: s.NextAttempt, LastError: s.LastError,
		NaughtyCause: netguard.Cause(s.NaughtyCause),
	}
	w.seen = w.health.State(now)
	w.connected, w.complete, w.daily, w.marked = s.LastConnected, s.CompleteUntil, s.NextDaily, s.ConfirmedAt
	if s.Rules == w.Hash {
		w.status.Confirmed = session.Mark{Target: s.Confirmed, Log: s.ConfirmedLog, Replies: s.ConfirmedReplies}
	}
}

func (w *relayWorker) run(ctx context.Context) {
	for known := false; !known; _, known = w.target.Now() {
		select {
		case <-w.target.Changed:
		case <-ctx.Done():
			return
		}
	}
	if time.Since(w.connected) <= w.Rules.ReconnectWindow { // else the next connection is a fresh start
		var err error
		if w.confirmed, err = w.target.Past(ctx, w.status.Confirmed); err != nil && ctx.Err() == nil {
			w.log.Warn("what was confirmed before is asked for again", "error", err)
			w.status.Confirmed = session.Mark{}
		}
		// A successor of a worker that was killed must know it too.
		if w.connected.Sub(w.state.value.ConfirmedAt) < session.LateFor {
			w.doubtful = w.confirmed
		}
	}
	first, bootstrap := true, false
	for ctx.Err() == nil {
		relay := w.target.Relay()
		w.url, w.further, bootstrap = relay.URL, relay.Further, relay.Bootstrap
		if w.url == "" || nostr.RelayURL(w.url).OnDomain(w.Domain) {
			// Not a target any more, or ourselves: the claim will be taken back.
			select {
			case <-w.target.Changed:
			case <-ctx.Done():
			}
			continue
		}
		w.pause(ctx, w.wait(time.Now(), first, bootstrap))
		first = false
		w.unlessBannedDo(ctx, w.url, w.log, w.attempt)
	}
}

// wait is how long to stay away from the relay. When the claim is new bootstrap relays connect at
// once and the others spread out, so that a restart or a hand-over of many is no stampede.
func (w *relayWorker) wait(now time.Time, first, bootstrap bool) time.Duration {
	if first && bootstrap {
		return 0
	}
	wait := max(w.health.NextAttempt.Sub(now), w.health.Limited.Sub(now), 0)
	if jitter := millis(w.Rules.StartupJitterMillis); first && jitter > 0 {
		wait = max(wait, w.claimed.Add(rand.N(jitter)).Sub(now))
	}
	return wait
}

// pause waits, and keeps metrics in step meanwhile.
func (w *relayWorker) pause(ctx context.Context, wait time.Duration) {
	due := time.NewTimer(wait)
	defer due.Stop()
	tick := time.NewTicker(w.Rules.Check)
	defer tick.Stop()
	for {
		now := time.Now()
		w.observe(now)
		if now.Sub(w.connected) > w.Rules.ReconnectWindow {
			w.confirmed = session.Set{} // the next connection is a fresh start
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

// unlessBannedDo does work with a relay, whose context ends when an operator bans the relay. While
// the relay is banned it waits.
func (e *Env) unlessBannedDo(ctx context.Context, url string, log *slog.Logger, work func(context.Context)) {
	unless, end := e.unlessBanned(ctx, url)
	defer end()
	if unless.Err() == nil {
		work(unless)
	}
	if banned, is := errors.AsType[*bans.BannedError](context.Cause(unless)); is && ctx.Err() == nil {
		log.Info("the relay is left alone", "url", url, "reason", banned.Ban.Message())
		e.Bans.Lifted(ctx, banned.Ban.Subject)
	}
}

// unlessBanned returns a context for work with a relay, which ends when the relay is banned.
func (e *Env) unlessBanned(ctx context.Context, url string) (context.Context, context.CancelFunc) {
	subject, err := bans.OfRelay(url)
	if e.Bans == nil || err != nil { // no connection is made to what is no relay
		return context.WithCancel(ctx)
	}
	return e.Bans.Unless(ctx, subject)
}

// attempt connects and talks until the connection ends.
func (w *relayWorker) attempt(ctx context.Context) {
	w.status = session.Status{Connection: session.Connecting, Confirmed: w.status.Confirmed, Reminded: w.status.Reminded}
	w.observe(time.Now())
	stated, err := w.mayConnect(ctx, w.url)
	var conn Connection
	if err == nil {
		conn, err = w.dial(ctx, w.url)
	}
	now := time.Now()
	if err != nil {
		if ctx.Err() == nil {
			w.failed(ctx, now, err)
		}
		return
	}
	defer conn.Close()
	w.Metrics.count(w.name, w.Metrics.attempts, "success")
	w.health = w.health.Opened(now)
	start := w.start(now)
	w.log.Info("connected", "url", w.url, "quick", start.Since != nil)
	err = w.runSession(ctx, conn, start, stated)
	w.ended(ctx, time.Now(), err)
}

// start prepares the session on a connection that was opened. A relay that was away for no longer
// than the window gets a quick reconnect, if anything is confirmed.
func (w *relayWorker) start(now time.Time) session.Start {
	start := session.Start{NoLayer1: w.further, Delay: max(0, seconds(w.Rules.StartupDelaySeconds)-now.Sub(w.Started))}
	quick := now.Sub(w.connected) <= w.Rules.ReconnectWindow && !w.confirmed.Empty()
	if quick {
		since := nostr.Timestamp(cmp.Or(w.complete, w.connected).Add(-w.Rules.ReconnectWindow).Unix())
		start.Since, start.Live, start.Confirmed, start.Doubtful, start.Mark = &since, w.connected, w.confirmed, w.doubtful, w.status.Confirmed
	} else {
		w.status.Confirmed, w.complete = session.Mark{}, time.Time{}
		clear(w.warned)
	}
	if !quick || w.daily.IsZero() {
		w.daily = w.nextDay(now)
	}
	w.connected = now
	return start
}

func (w *relayWorker) nextDay(now time.Time) time.Time {
	return now.Add(w.Rules.DailyMin + rand.N(max(0, w.Rules.DailyMax-w.Rules.DailyMin)+1))
}

// runSession runs a session on a connection until either ends.
func (w *relayWorker) runSession(ctx context.Context, conn Connection, start session.Start,
	stated wire.Stated) error {
	w.Status(w.status)
	w.gaps.Clear()
	document := make(chan wire.Stated, 1)
	document <- stated
	s := session.New(session.Options{
		Rules: w.Rules.Session, Asker: conn, Wanted: func() session.Wanted { now, _ := w.target.Now(); return now },
		Intake: w.Intake.Open(w.url), Observer: w, Document: document, Log: w.log,
		Negentropy: w.negentropy(), Warned: w.warned, Pauses: &w.pauses, Reminders: &w.reminders, ByID: w.byID,
		Authenticate: w.authenticate(conn, w.url),
	})
	w.confirmed = session.Set{} // the session's now
	replace(w.target.Changed, struct{}{})
	day := time.NewTimer(time.Until(w.daily))
	defer day.Stop()
	err := talk(ctx, conn, func(ctx context.Context, messages <-chan wire.Message) error {
		return s.Run(ctx, start, messages, w.target.Changed, day.C)
	}, func(ctx context.Context) { w.saveStatePeriodically(ctx, day) })
	w.confirmed, w.doubtful = s.Confirmed(), s.Doubtful()
	w.takeStatus()
	return err
}

// negentropy is what the relay is asked by NIP-77 with. It tells ids of ours, so a private service asks
// its peers alone so.
func (w *relayWorker) negentropy() *session.Negentropy {
	if !w.Hosting.MayAsk(w.url) {
		return nil
	}
	return w.Negentropy
}

// dial connects when it is the relay's turn. Waiting for that is no failure of the relay: it does not
// count as time that the opening takes.
func (e *Env) dial(ctx context.Context, url string) (Connection, error) {
	if e.Connects != nil {
		if err := e.Connects.Wait(ctx); err != nil {
			return nil, fmt.Errorf("wait for other connections to be made: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, e.Rules.Health.Base)
	defer cancel()
	return e.Dial(ctx, url)
}

// errPrivate is why a public service stays away from a relay.
var errPrivate = errors.New("it is a private service (GRASP-08), by its relay information document")

// mayConnect asks a relay for what it says of itself before a public service connects. A relay that
// does not answer is connected to.
func (e *Env) mayConnect(ctx context.Context, url string) (wire.Stated, error) {
	ctx, cancel := context.WithTimeout(ctx, e.Rules.Health.Base)
	defer cancel()
	stated, err := e.Document(ctx, url)
	if err == nil && stated.Private && !e.Private {
		return stated, errPrivate
	}
	return stated, nil
}

// authenticate answers a relay's challenge. Nothing that the relay says gets into what is signed
// but its challenge.
func (e *Env) authenticate(conn Connection, url string) func(challenge string) error {
	return func(challenge string) error {
		if !e.Hosting.MayAsk(url) {
			return fs.ErrNotExist // no key for this relay
		}
		ev := nip42.CreateUnsignedAuthEvent(challenge, "", url)
		err := e.Sign(&ev)
		if err == nil {
			conn.Auth(ev)
		}
		return err
	}
}

// talk gives what is read from a connection to run, until either ends. What is done besides ends
// with it.
func talk(
	ctx context.Context, conn Connection, run func(ctx context.Context,
		messages <-chan wire.Message) error, besides ...func(ctx context.Context),
) error {
	messages := make(chan wire.Message)
	var lost error // why reading has ended
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(messages) // what the relay says last is heard: it may be why it goes
		defer conn.Close()    // which ends what is being written: the session waits for that
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
	for _, do := range besides {
		group.Go(func() error { do(ctx); return nil })
	}
	group.Go(func() error {
		if err := run(ctx, messages); err != nil || ctx.Err() != nil {
			return err
		}
		return lost
	})
	return group.Wait()
}

// saveStatePeriodically keeps what is known of the relay in step, and says when a day is over. It
// never waits for the session, which may be waiting for room for what came.
func (w *relayWorker) saveStatePeriodically(ctx context.Context, day *time.Timer) {
	tick := time.NewTicker(w.Rules.Check)
	defer tick.Stop()
	saved, savedAt := session.Status{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if w.takeStatus() {
				day.Reset(time.Until(w.daily))
			}
			w.markConnected(now)
			w.observe(now)
			// A successor must find the last connection young enough, so it is written down from
			// time to time though nothing changed.
			if (w.status != saved || now.Sub(savedAt) > w.Rules.ReconnectWindow/3) && w.save(ctx) {
				saved, savedAt = w.status, now
			}
		}
	}
}

// takeStatus takes in what the session has said of itself, and reports whether a daily start has
// begun. One that is due stays so until then, on any connection and by any worker.
func (w *relayWorker) takeStatus() (begun bool) {
	st := *w.reported.Load()
	if st.Confirmed != w.status.Confirmed {
		w.marked = time.Now()
	}
	if begun = st.Days != w.status.Days; begun {
		w.complete, w.daily = time.Time{}, w.nextDay(time.Now())
	}
	if st.Answered && !w.status.Answered {
		w.health = w.health.Answered()
	}
	w.status, w.health.Limited, w.health.Refused = st, st.Limited, st.Refused
	return begun
}

// Status implements session.Observer.
func (w *relayWorker) Status(s session.Status) { w.reported.Store(&s) }

// Judged counts an event that is served now and was not before, logs a live one, and tells a gap:
// one that should have come live but was found by a later sync.
func (w *relayWorker) Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict) {
	if v.Outcome == proto.Accepted {
		w.Metrics.synced.Inc()
	}
	if source == proto.SourceLive {
		w.log.Debug("live event", "id", ev.ID, "kind", ev.Kind, "outcome", v.Outcome, "message", v.Message)
	}
	if !gap {
		return
	}
	w.Metrics.count(w.name, w.Metrics.gaps)
	if _, told := w.gaps.LoadOrStore(source, true); told {
		return
	}
	level := slog.LevelWarn
	if source == proto.SourceDaily {
		level = slog.LevelError
	}
	w.log.Log(context.Background(), level, "an event that should have come live was found later", "source", source, "id",
		ev.ID, "kind", ev.Kind)
}

// NotTaken counts what the relay sent and ingest did not get, or rejected.
func (w *relayWorker) NotTaken(reason string) { w.Metrics.notTaken.WithLabelValues(reason).Inc() }

// Refused counts a request that the relay refused for good.
func (w *relayWorker) Refused(category string) { w.Metrics.refusals.WithLabelValues(category).Inc() }

func (w *relayWorker) failed(ctx context.Context, now time.Time, err error) {
	w.health = w.health.Failed(now, err)
	w.Metrics.count(w.name, w.Metrics.attempts, "failure")
	w.logDisconnect("connection failed", now, err)
	w.saveEnd()
}

func (w *relayWorker) ended(ctx context.Context, now time.Time, err error) {
	// What was confirmed on this connection has come live until now, or until something went
	// missing, unless there was something to catch up with first.
	w.markConnected(now)
	w.complete = cmp.Or(w.complete, w.status.Missing, now)
	if ctx.Err() != nil {
		w.health = w.health.Left(now)
		w.log.Info("connection closed", "url", w.url)
	} else {
		w.health = w.health.Dropped(now, err)
		w.logDisconnect("disconnected", now, err)
	}
	w.saveEnd()
}

// saveEnd writes down that there is no connection, also when the claim is to pass on.
func (w *relayWorker) saveEnd() {
	w.status = session.Status{Confirmed: w.status.Confirmed, Reminded: w.status.Reminded}
	w.save(w.lease)
}

// markConnected notes that the connection stands. Only once it has caught up with what it missed,
// a next one need not go back as far as it did.
func (w *relayWorker) markConnected(now time.Time) {
	switch w.connected = now; {
	case w.status.CaughtUp:
		w.complete = now
	case w.complete.IsZero(): // a successor of a worker that was killed must know it too
		w.complete = w.status.Missing
	}
}

// logDisconnect says why there is no connection, and for how long the relay is left alone now.
func (w *relayWorker) logDisconnect(what string, now time.Time, err error) {
	w.log.Warn(what, "url", w.url, "attempt", w.health.Failures, "again_in",
		max(0, w.health.NextAttempt.Sub(now)).Round(time.Second),
		"naughty", !w.health.NaughtyUntil.IsZero(), "cause", netguard.Classify(err), "error", err)
}

// save writes down how the relay stands, and says whether it could.
func (w *relayWorker) save(ctx context.Context) bool {
	now := time.Now()
	w.observe(now)
	confirmed := w.target.Confirmed(w.status.Confirmed)
	if w.status.Reminded { // of what, is not written down: a successor asks for everything
		confirmed = session.Mark{}
	}
	s := proto.RelayState{
		URL: w.url, Further: w.further, Worker: w.Worker, Connection: int(w.status.Connection), Health: int(w.seen),
		Failures: w.health.Failures, FailingSince: w.health.FailingSince, LastError: w.health.LastError, NaughtyUntil: w.health.NaughtyUntil,
		NaughtyCause: string(w.health.NaughtyCause), NextAttempt: w.health.NextAttempt, NextDaily: w.daily, LastConnected: w.connected, CompleteUntil: w.complete,
		Confirmed: confirmed.Target, ConfirmedLog: confirmed.Log, ConfirmedReplies: confirmed.Replies, ConfirmedAt: w.marked, Rules: w.Hash,
		Repos: w.status.Repos, Roots: w.status.Roots, Subscriptions: w.status.Subscriptions,
	}
	if s.NextAttempt.Before(w.health.Limited) {
		s.NextAttempt = w.health.Limited
	}
	if w.status.Connection == session.Disconnected {
		s.DisconnectedAt = w.connected
	}
	err := w.state.put(ctx, s)
	if err != nil && ctx.Err() == nil {
		w.log.Warn("the relay's state could not be written", "error", err)
	}
	return err == nil
}

// observe keeps health and metrics in step with the time, and tells what only time brings about.
func (w *relayWorker) observe(now time.Time) {
	w.health = w.health.Held(now)
	state := w.health.State(now)
	if state == health.Dead && w.seen != health.Dead {
		w.log.Error("the relay is dead: it has been failing without a break", "since", w.health.FailingSince)
	}
	w.seen = state
	if !w.health.NaughtyUntil.IsZero() && !now.Before(w.health.NaughtyUntil) {
		w.log.Info("the relay's time on the naughty list is over")
		w.health = w.health.Forgiven()
	}
	w.Metrics.set(w.name, snapshot{
		label: w.url, connection: w.status.Connection, health: state, failures: w.health.Failures, naughty: w.health.NaughtyCause,
	})
}
