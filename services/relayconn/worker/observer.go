package worker

import (
	"context"
	"log/slog"
	"sync"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

// observer hears what one session does. It shares nothing with the goroutines of its relay but what
// is safe for them all.
type observer struct {
	relay    string
	metrics  *Metrics
	log      *slog.Logger
	statuses chan session.Status // of capacity 1

	mu     sync.Mutex
	warned map[proto.Source]bool
}

func newObserver(relay string, metrics *Metrics, log *slog.Logger) *observer {
	return &observer{relay: relay, metrics: metrics, log: log, statuses: make(chan session.Status, 1), warned: map[proto.Source]bool{}}
}

// Status keeps the newest status for whoever looks next.
func (o *observer) Status(s session.Status) {
	replace(o.statuses, s)
}

// Judged counts an event that is served now and was not before, and tells a gap: one that should
// have come live but was found by a later sync.
func (o *observer) Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict) {
	if v.Outcome == proto.Accepted {
		o.metrics.synced.Inc()
	}
	if o.log.Enabled(context.Background(), slog.LevelDebug) { // the arguments alone cost something
		o.log.Debug("event", "id", ev.ID, "kind", ev.Kind, "source", source, "outcome", v.Outcome, "gap", gap)
	}
	if !gap {
		return
	}
	o.metrics.gap(o.relay)
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
