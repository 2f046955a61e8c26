package relay

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

// observer hears what one session does.
type observer struct {
	life     *life
	log      *slog.Logger
	since    time.Time // the last connection before this one
	statuses chan session.Status

	mu     sync.Mutex
	warned map[proto.Source]bool
}

// Status keeps the newest status for whoever looks next.
func (o *observer) Status(s session.Status) {
	for {
		select {
		case o.statuses <- s:
			return
		default:
		}
		select {
		case <-o.statuses:
		default:
		}
	}
}

// Judged counts an event that was new to us, and tells a gap: an event that should have come live but came by a later sync.
func (o *observer) Judged(ev *nostr.Event, source proto.Source, v proto.Verdict) {
	o.life.Metrics.synced.Inc()
	o.log.Debug("event", "id", ev.ID, "kind", ev.Kind, "source", source, "outcome", v.Outcome)
	daily := source == proto.SourceDaily
	if !daily && !(source == proto.SourceReconnect && ev.CreatedAt.Time().Before(o.since)) {
		return
	}
	o.life.Metrics.gaps.WithLabelValues(o.life.name).Inc()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.warned[source] {
		return
	}
	if o.warned == nil {
		o.warned = map[proto.Source]bool{}
	}
	o.warned[source] = true
	level := slog.LevelWarn
	if daily {
		level = slog.LevelError
	}
	o.log.Log(context.Background(), level, "an event that should have come live was found later", "source", source, "id", ev.ID, "kind", ev.Kind)
}
