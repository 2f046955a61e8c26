// Package hunt looks for the git data that held events promise: identifier by identifier, at every clone URL that they name, politely, until
// nothing is missing (spec/purgatory.md, The hunt).
package hunt

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"tendril.dev/services/purgatory/throttle"
)

// Want is what one repository of an identifier misses.
type Want struct {
	Owner   string
	Objects []string
	Near    []string // those of the URLs that are asked first for it
}

// Prospect is what is missing for an identifier, and where it may be.
type Prospect struct {
	Wants []Want
	URLs  []string
}

// Ground is where the hunt takes place.
type Ground interface {
	// Look releases what is complete and tells what is still missing. It logs what goes wrong.
	Look(ctx context.Context, identifier string) (Prospect, error)
	// Fetch asks one server for what one repository misses. brought says whether anything came.
	Fetch(ctx context.Context, identifier, url string, want Want) (brought bool)
}

// attemptTime is how long an attempt begins new requests. Anybody may announce servers that take their time: an identifier that has many of them
// must not keep its place among the hunts under way for hours.
const attemptTime = 5 * time.Minute

// Hunter hunts what its queue says.
type Hunter struct {
	Queue    *Queue
	Throttle *throttle.Throttle
	Ground   Ground
	Rules    Rules
	Log      *slog.Logger

	running sync.WaitGroup
	cut     sync.Map // identifiers whose last attempt ran out of time: the next begins elsewhere
}

// Run hunts until ctx ends; fetches under way are ended with it.
func (h *Hunter) Run(ctx context.Context) error {
	defer h.running.Wait()
	defer h.Throttle.Close()
	room := make(chan struct{}, h.Rules.AtOnce)
	tick := time.NewTicker(h.Rules.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, identifier := range h.Queue.Due(time.Now(), cap(room)-len(room)) {
			room <- struct{}{}
			h.running.Go(func() {
				defer func() { <-room }()
				missing := h.attempt(ctx, identifier)
				h.Queue.Finished(identifier, time.Now(), missing)
			})
		}
	}
}

// attempt tries every URL whose server is not busy, one after the other, until nothing is missing (Path 1), and leaves the others to their servers'
// queues (Path 2). It says whether something is still missing.
func (h *Hunter) attempt(ctx context.Context, identifier string) (missing bool) {
	p, ok := h.look(ctx, identifier)
	busy := map[string][]request{}
	var order []string
	_, wasCut := h.cut.LoadAndDelete(identifier)
	until := time.Now().Add(attemptTime)
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
		domain := throttle.Domain(r.url)
		release, free := h.Throttle.Try(domain)
		if !free {
			if busy[domain] == nil {
				order = append(order, domain)
			}
			busy[domain] = append(busy[domain], r)
			continue
		}
		brought := h.Ground.Fetch(ctx, identifier, r.url, want)
		release()
		if brought {
			if next, looked := h.look(ctx, identifier); looked {
				p.Wants = next.Wants
			}
		}
	}
	if ok && len(p.Wants) == 0 {
		return false
	}
	for _, domain := range order {
		h.join(ctx, domain, identifier, busy[domain])
	}
	return true
}

// join waits in a busy server's queue with the requests that were not made yet; after each turn it stands at the end again.
func (h *Hunter) join(ctx context.Context, domain, identifier string, requests []request) {
	h.Throttle.Join(domain, identifier, func(release func()) {
		defer release()
		if ctx.Err() != nil {
			return
		}
		p, _ := h.look(ctx, identifier)
		for i, r := range requests {
			want, still := p.want(r.owner)
			if !still {
				continue
			}
			// The identifier's own entry ends at its next attempt, which finds nothing missing; ending it here could end what came meanwhile.
			if h.Ground.Fetch(ctx, identifier, r.url, want) {
				h.look(ctx, identifier)
			}
			if i+1 < len(requests) {
				h.join(ctx, domain, identifier, requests[i+1:])
			}
			return
		}
	})
}

func (h *Hunter) look(ctx context.Context, identifier string) (Prospect, bool) {
	p, err := h.Ground.Look(ctx, identifier)
	if err != nil {
		if ctx.Err() == nil {
			h.Log.Debug("an attempt found nothing to stand on", "identifier", identifier, "error", err)
		}
		return Prospect{}, false
	}
	return p, true
}
