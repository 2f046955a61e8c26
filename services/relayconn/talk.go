package relayconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr/nip42"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// errWithdrawn: nothing is wanted of the relay any more.
var errWithdrawn = errors.New("the relay is no target any more")

// talk runs a session on a connection until either ends.
func (l *life) talk(ctx context.Context, conn *wire.Conn, start session.Start) error {
	group, ctx := errgroup.WithContext(ctx)
	o := &observer{life: l, statuses: make(chan session.Status, 1), warned: map[proto.Source]bool{}}
	document := make(chan wire.Document, 1)
	messages := make(chan wire.Message)
	var lost error // why reading has ended
	var reconciling *session.Negentropy
	if l.Negentropy != nil {
		with := *l.Negentropy
		with.Relay = conn
		reconciling = &with
	}
	s := session.New(session.Options{
		Rules: l.Rules.Session, Asker: conn, Wanted: func() session.Wanted { now, _ := l.target.Now(); return now },
		Intake: l.Intake.Open(l.url), Observer: o, Document: document, Log: l.log,
		Negentropy: reconciling, Warned: l.warned,
		Authenticate: func(ctx context.Context, challenge string) error {
			// Nothing that the relay says gets into what is signed but its challenge.
			ev := nip42.CreateUnsignedAuthEvent(challenge, "", l.url)
			if err := l.Sign(&ev); err != nil {
				return err
			}
			return conn.Auth(ctx, ev)
		},
	})
	l.confirmed = history.Set{} // the session's now
	replace(l.target.Changed, struct{}{})
	day := time.NewTimer(time.Until(l.daily))
	defer day.Stop()
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
		if d, err := wire.FetchDocument(ctx, l.Guard.HTTPClient(), l.url); err != nil {
			l.log.Debug("the relay tells nothing about itself", "error", err)
		} else {
			document <- d
		}
		return nil
	})
	group.Go(func() error {
		if err := s.Run(ctx, start, messages, l.target.Changed, day.C); err != nil {
			return fmt.Errorf("session: %w", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		return lost
	})
	group.Go(func() error { return l.tend(ctx, o, day) })
	err := group.Wait()
	l.confirmed = s.Confirmed()
	select {
	case st := <-o.statuses:
		l.note(st)
	default:
	}
	return err
}

// tend keeps what is known of the relay in step, and says when a day is over. It never waits for the
// session, which may be waiting for room for what came.
func (l *life) tend(ctx context.Context, o *observer, day *time.Timer) error {
	tick := time.NewTicker(l.Rules.CheckEvery)
	defer tick.Stop()
	saved, savedAt := session.Status{}, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case st := <-o.statuses:
			if l.note(st) {
				day.Reset(time.Until(l.daily))
			}
			l.observe(time.Now())
		case now := <-tick.C:
			if url, _ := l.target.Relay(); url == "" {
				return errWithdrawn
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

// note takes in what the session says of itself, and reports whether a daily start has begun. One
// that is due stays so until then, on any connection and by any worker.
func (l *life) note(st session.Status) (begun bool) {
	if begun = st.Days != l.status.Days; begun {
		l.complete, l.daily = time.Time{}, l.nextDay(time.Now())
	}
	if st.Answered && !l.status.Answered {
		l.health = l.health.Answered()
	}
	l.status, l.health.Limited = st, st.Limited
	return begun
}

// observer hears what one session does. Of its relay it uses only what never changes.
type observer struct {
	*life
	statuses chan session.Status // of capacity 1

	mu     sync.Mutex
	warned map[proto.Source]bool
}

// Status keeps the newest status for who looks next.
func (o *observer) Status(s session.Status) { replace(o.statuses, s) }

// Judged counts an event that is served now and was not before, and tells a gap: one that should
// have come live but was found by a later sync.
func (o *observer) Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict) {
	if v.Outcome == proto.Accepted {
		o.Metrics.synced.Inc()
	}
	if !gap {
		return
	}
	o.Metrics.count(o.name, o.Metrics.gaps)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.warned[source] {
		return
	}
	o.warned[source] = true
	level := slog.LevelWarn
	if source == proto.SourceDaily {
		level = slog.LevelError
	}
	o.log.Log(context.Background(), level, "an event that should have come live was found later", "source", source, "id", ev.ID, "kind", ev.Kind)
}
