package relayconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

const (
	// visitsAtOnce bounds the visits of a process, and longestVisit each.
	visitsAtOnce, longestVisit = 8, 30 * time.Minute
	// visitEvery is how often a relay is visited. After a failure it is visited again after
	// revisitFirst, twice as long each time, up to revisitMost.
	visitEvery                = 24 * time.Hour
	revisitFirst, revisitMost = 5 * time.Minute, time.Hour
	// visitPause is the least time between two visits: people of whom nothing was asked yet are asked
	// for before the day is over, but not one by one.
	visitPause = time.Minute
)

// dailyVisits are what people's relay lists lead to, at one relay (GRASP-03): once a day it is
// connected to and asked for the past of threads and repositories, and for lists and profiles.
// Nothing comes live. The claim on the visits is another than that on the connection that stands.
type dailyVisits struct {
	*Env
	target *Wanted
	keeper *stateKeeper
	state  proto.RelayState
	log    *slog.Logger
}

// visitDaily visits the relay of that claim until ctx ends.
func (e *Env) visitDaily(ctx context.Context, held claim.Held) error {
	v := &dailyVisits{Env: e, target: e.Targets.Of(held.Key), log: e.Log.With("relay", held.Key)}
	v.keeper = &stateKeeper{js: e.JS, kv: e.States, key: held.Key, kept: 2 * visitEvery, log: v.log}
	if err := v.keeper.read(ctx); err != nil {
		return err
	}
	if v.state = v.keeper.value; v.state.Rules != e.Hash {
		v.state = proto.RelayState{}
	}
	defer v.target.Close()
	if err := v.target.Open(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		due, wait := v.due(time.Now())
		if !due.Items.Empty() {
			v.unlessBannedDo(ctx, v.state.URL, v.log, func(ctx context.Context) { v.visit(ctx, due) })
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-v.target.Changed:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// due is what the relay should be asked for now: all of it once a day, and before that people of
// whom nothing was asked. If nothing is due, wait is when to look again.
func (v *dailyVisits) due(now time.Time) (due session.Wanted, wait time.Duration) {
	wanted, known := v.target.Now()
	relay := v.target.Relay()
	if !known || !relay.Exists() || nostr.RelayURL(relay.URL).OnDomain(v.Domain) {
		return due, visitEvery // a change wakes it
	}
	v.state.URL = relay.URL
	if pause := v.state.NextAttempt.Sub(now); pause > 0 {
		return due, pause
	}
	if pause := v.state.NextDaily.Sub(now); pause > 0 {
		wanted.Items = session.Set{People: v.target.newPeople(v.state.Confirmed)}
		return wanted, pause
	}
	return wanted, visitEvery
}

// newPeople are those whose lists are wanted since a sequence of GRASP_TARGETS.
func (w *Wanted) newPeople(after uint64) []string {
	w.targets.mu.Lock()
	defer w.targets.mu.Unlock()
	all, before := w.some(maxSeq), w.some(after)
	return session.Diff(session.Set{People: all.People}, session.Set{People: before.People}, session.Set{}).People
}

// visit asks the relay for the past of some things, and writes down when its next visit is due.
func (v *dailyVisits) visit(ctx context.Context, what session.Wanted) {
	if v.visits.Acquire(ctx, 1) != nil {
		return
	}
	err := v.ask(ctx, what)
	v.visits.Release(1)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	daily := !v.state.NextDaily.After(now)
	v.state.Further, v.state.Worker, v.state.Rules = true, v.Worker, v.Hash
	if err != nil {
		v.state.Failures, v.state.LastError = v.state.Failures+1, err.Error()
		v.state.NextAttempt = now.Add(backoff.After(v.state.Failures, revisitFirst, revisitMost))
		v.log.Debug("a visit of a relay has failed", "url", v.state.URL, "again", v.state.NextAttempt, "error", err)
	} else {
		v.state.LastConnected = now
		v.state.Failures, v.state.LastError, v.state.NextAttempt = 0, "", now.Add(visitPause)
		v.state.Confirmed = max(v.state.Confirmed, what.Mark.Target)
		if daily {
			v.state.NextDaily = now.Add(visitEvery)
			v.state.Repos, v.state.Roots = len(what.Items.Full), len(what.Items.Roots)
		}
	}
	if err := v.keeper.put(ctx, v.state); err != nil && ctx.Err() == nil {
		v.log.Warn("the relay's state could not be written", "error", err)
	}
}

// ask connects, and asks until everything has come. The error says why it has not.
func (v *dailyVisits) ask(ctx context.Context, what session.Wanted) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longestVisit, errors.New("it takes too long"))
	defer cancel()
	url := v.state.URL
	stated, err := v.mayConnect(ctx, url)
	if err != nil {
		return err
	}
	conn, err := v.dial(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close()
	document := make(chan wire.Stated, 1)
	document <- stated
	ended := make(chan session.Status, 1) // how it ended, once
	s := session.New(session.Options{
		Rules: v.Rules.Session, Asker: conn, Wanted: func() session.Wanted { return what },
		Intake: v.Intake.Open(url), Observer: askedOnce{visitor{v.Metrics}, ended}, Log: v.log,
		Document: document, Negentropy: v.Negentropy, Warned: map[string]bool{}, Pauses: &session.Pauses{},
		Authenticate: v.authenticate(conn, url),
	})
	var last *session.Status
	err = talk(ctx, conn, func(ctx context.Context, messages <-chan wire.Message) error {
		return s.Run(ctx, session.Start{OnlyPast: true}, messages, nil, nil)
	}, func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case st := <-ended:
			last = &st
			cancel()
		}
	})
	switch {
	case last != nil && last.Connection == session.Connected:
		return nil
	case last != nil:
		return errors.New("the relay did not answer everything that it was asked")
	case err == nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("ask the relay for the past: %w", err)
}

// askedOnce observes a session of a visit, and says when it has come to an end. What the relay refuses
// for good has: the next visit is a day later.
type askedOnce struct {
	visitor
	ended chan session.Status
}

// Status implements session.Observer.
func (o askedOnce) Status(st session.Status) {
	if st.Connection == session.Connected || st.Connection == session.Incomplete {
		select {
		case o.ended <- st:
		default:
		}
	}
}
