package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/k8s/load"
	"tendril.dev/test/outside"
)

// flow is what was published on the foreign relays about the users' repository.
type flow struct {
	mu  sync.Mutex
	ids []string
}

func (f *flow) add(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = append(f.ids, id)
}

func (f *flow) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.ids...)
}

// event signs the n-th event about the users' repository: a comment, or now and then an issue.
func (w *World) event(n int, at nostr.Timestamp) (*nostr.Event, error) {
	address := w.owner.Address(project)
	if n%200 == 0 {
		return w.guest.Sign(at, issue, "issue "+strconv.Itoa(n), nostr.Tag{"a", address})
	}
	return w.guest.Sign(at, gonostr.KindComment, "comment "+strconv.Itoa(n), nostr.Tag{"A", address}, nostr.Tag{"K", "30617"},
		nostr.Tag{"P", w.owner.PubKey}, nostr.Tag{"a", address}, nostr.Tag{"k", "30617"}, nostr.Tag{"p", w.owner.PubKey})
}

// stock puts events of the past on the relays, one a second back from now.
func (w *World) stock(t *task, events int) error {
	now := nostr.Now()
	for n := range events {
		ev, err := w.event(n, now-nostr.Timestamp(1+(events-n)/len(w.relays)))
		if err != nil {
			return err
		}
		if err := w.relays[n%len(w.relays)].Publish(ev); err != nil {
			return err
		}
		w.flow.add(ev.ID)
	}
	t.say("%d events lie on %d relays", events, len(w.relays))
	return nil
}

// publish publishes events of now on the relays, so many a second.
func (w *World) publish(t *task, events, rate int) error {
	if rate < 1 {
		return errors.New("the rate must be at least 1")
	}
	began := time.Now()
	for n := range events {
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		ev, err := w.event(n, nostr.Now())
		if err != nil {
			return err
		}
		if err := w.relays[n%len(w.relays)].Publish(ev); err != nil {
			return err
		}
		w.flow.add(ev.ID)
	}
	t.say("published %d events on %d relays in %v", events, len(w.relays), time.Since(began).Round(time.Second))
	return nil
}

// served waits until everything that lies on the relays, and everything that users were told is
// accepted, is served. It ends with an error when nothing more has come for three minutes.
func (w *World) served(ctx context.Context, t *task) error {
	const patience = 3 * time.Minute
	want := append(w.flow.all(), w.users.acknowledged()...)
	missing, progress := want, time.Now()
	for {
		left, err := w.notServed(ctx, missing)
		if err == nil && len(left) < len(missing) {
			progress = time.Now()
		}
		if err == nil {
			missing = left
		}
		if err == nil && len(missing) == 0 {
			break
		}
		if time.Since(progress) > patience {
			if err == nil {
				err = fmt.Errorf("the first is %s", missing[0])
			}
			return fmt.Errorf("of %d events %d are not served, and nothing more has come for %v: %w", len(want), len(missing), patience, err)
		}
		time.Sleep(time.Second)
	}
	t.say("%d of %d events are served", len(want), len(want))
	return w.users.pushesAreThere(ctx, w, t)
}

// notServed returns those of the events that the front door does not serve.
func (w *World) notServed(ctx context.Context, ids []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := outside.Dial(ctx, w.relay(), nil)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var missing []string
	for len(ids) > 0 {
		some := ids[:min(500, len(ids))]
		ids = ids[len(some):]
		events, err := s.Query(ctx, nostr.Filter{IDs: some, Limit: len(some)})
		if err != nil {
			return nil, err
		}
		served := map[string]bool{}
		for _, ev := range events {
			served[ev.ID] = true
		}
		for _, id := range some {
			if !served[id] {
				missing = append(missing, id)
			}
		}
	}
	return missing, nil
}

// status tells how the world stands.
func (w *World) status(rw http.ResponseWriter, _ *http.Request) {
	w.flow.mu.Lock()
	published := len(w.flow.ids)
	w.flow.mu.Unlock()
	clients := map[string]load.Tally{}
	if meter := w.users.current(); meter != nil {
		clients = meter.Tallies()
	}
	answer(rw, load.Status{Now: time.Now(), Published: published, Clients: clients, Spans: w.ledger.Spans(), Relays: w.urls})
}
