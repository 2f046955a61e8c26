// Package hunt looks for the git data that held events promise: identifier by identifier, at every
// clone URL that they name, politely, until nothing is missing.
package hunt

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/throttle"
)

// Prospect is what is missing for an identifier, and where it may be.
type Prospect struct {
	Wants   []dossier.Want
	Sources []dossier.Source
}

// Outcome is how a fetch ended.
type Outcome int

// Outcomes.
const (
	Failed  Outcome = iota // nothing came
	Brought                // something that was wanted came
	PutOff                 // the server was not asked: others to the same network were
)

// Ground is where the hunt takes place.
type Ground interface {
	// Look releases what is complete and tells what is still missing. It logs what goes wrong.
	Look(ctx context.Context, identifier string) (Prospect, error)
	// Fetch asks one server for what one repository misses. reached is told at which address the
	// server was found; where it returns false the fetch is put off.
	Fetch(ctx context.Context, identifier, url string, want dossier.Want, reached func(netip.Addr) bool) Outcome
}

const (
	// attemptTime is how long an attempt begins new requests. Anybody may announce servers that
	// take their time: an identifier that has many of them must not be in progress for hours, for
	// nothing new of it is looked at meanwhile.
	attemptTime = 5 * time.Minute
	// looksAtOnce is how many attempts look at their identifier at once, which takes git processes.
	// While one waits for a server it is not among them.
	looksAtOnce = 16
)

// Hunter hunts what its queue says.
type Hunter struct {
	Queue    *Queue
	Throttle *throttle.Throttle
	Ground   Ground
	Rules    Rules
	Log      *slog.Logger

	running sync.WaitGroup
	paths   paths
	room    chan struct{} // a token for each attempt that looks
	left    chan struct{} // somebody has left the room
	cut     sync.Map      // identifiers whose last attempt ran out of time: the next begins elsewhere
}

// Run hunts until ctx ends; fetches under way are ended with it.
func (h *Hunter) Run(ctx context.Context) error {
	defer h.running.Wait()
	defer h.Throttle.Close()
	h.room, h.left = make(chan struct{}, looksAtOnce), make(chan struct{}, 1)
	tick := time.NewTicker(h.Rules.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-h.left:
		}
		for _, identifier := range h.Queue.Due(time.Now(), cap(h.room)-len(h.room)) {
			h.running.Go(func() {
				h.enter()
				defer h.leave()
				missing := h.attempt(ctx, identifier)
				h.Queue.Finished(identifier, time.Now(), missing)
			})
		}
	}
}

// enter waits for room to look.
func (h *Hunter) enter() { h.room <- struct{}{} }

// leave makes room for another, who may be due already.
func (h *Hunter) leave() {
	<-h.room
	select {
	case h.left <- struct{}{}:
	default:
	}
}

// attempt tries every URL whose server is not busy, one after the other, until nothing is missing
// (Path 1), and leaves the others to their servers' queues (Path 2). It says whether something is
// still missing.
func (h *Hunter) attempt(ctx context.Context, identifier string) (missing bool) {
	p, ok := h.look(ctx, identifier)
	_, wasCut := h.cut.LoadAndDelete(identifier)
	until := time.Now().Add(attemptTime)
	made := rest{by: map[place]*path{}}
	for r := range p.requests(wasCut) {
		if len(p.Wants) == 0 || ctx.Err() != nil {
			break
		}
		if time.Now().After(until) {
			h.cut.Store(identifier, true)
			break
		}
		want, still := p.want(r.owner)
		if !still {
			continue
		}
		at := place{throttle.Domain(r.URL), identifier}
		turn, free := h.begin(at, r)
		if !free {
			made.leave(at, r)
			continue
		}
		h.leave() // the server may take its time, and others want to look
		outcome := h.Ground.Fetch(ctx, identifier, r.URL, want, turn.Reached)
		turn.End()
		h.enter()
		switch outcome {
		case PutOff:
			made.leave(at, r)
		case Brought:
			made.note(at, r, want)
			if next, looked := h.look(ctx, identifier); looked {
				p.Wants = next.Wants
			}
		default:
			made.note(at, r, want)
		}
	}
	if ok && len(p.Wants) == 0 {
		return false
	}
	for _, at := range made.busy {
		if h.paths.add(at, made.by[at]) {
			h.join(ctx, at)
		}
	}
	return true
}

// begin admits a request of an attempt. Where the identifier waits for that server already, its
// turn there will come.
func (h *Hunter) begin(at place, r request) (*throttle.Turn, bool) {
	if h.paths.has(at) {
		return nil, false
	}
	return h.Throttle.Try(at.domain, r.who())
}

// join waits in a busy server's queue with the requests that were not made yet; after each turn it
// stands at the end again.
func (h *Hunter) join(ctx context.Context, at place) {
	next, waits := h.paths.first(at)
	if !waits {
		return
	}
	h.Throttle.Join(at.domain, at.identifier, next.who(), func(turn *throttle.Turn) {
		defer turn.End()
		if ctx.Err() != nil {
			return
		}
		// The identifier's own entry ends at its next attempt, which finds nothing missing; ending
		// it here could end what came meanwhile.
		p, _ := h.look(ctx, at.identifier)
		r, want, waits := h.paths.next(at, p)
		if !waits {
			return
		}
		switch h.Ground.Fetch(ctx, at.identifier, r.URL, want, turn.Reached) {
		case PutOff:
			h.paths.putOff(at, r)
		case Brought:
			h.look(ctx, at.identifier)
		}
		turn.End() // before it joins again, so that it stands behind those who had no turn
		h.join(ctx, at)
	})
}

func (h *Hunter) look(ctx context.Context, identifier string) (Prospect, bool) {
	p, err := h.Ground.Look(ctx, identifier)
	if err != nil {
		if ctx.Err() == nil {
			h.Log.Debug("the event to hunt for is not held any more, or could not be looked up", "identifier", identifier, "error", err)
		}
		return Prospect{}, false
	}
	return p, true
}
