// Package obs is how a process is watched: its log, its metrics, and whether it lives and is ready.
// What is measured each package declares by itself.
package obs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tendril.dev/lib/nostr"
)

// levels are the names of levels. Other GRASP servers have trace and off; trace is our debug.
var levels = map[string]slog.Level{
	"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo,
	"warn": slog.LevelWarn, "warning": slog.LevelWarn, "error": slog.LevelError,
	"off": math.MaxInt,
}

// ParseLevel reads NGIT_LOG_LEVEL: a level, or a filter as other GRASP servers take it
// ("debug,hyper=info", "ngit_grasp=debug,warn"), of which the first level counts.
func ParseLevel(filter string) (slog.Level, error) {
	for directive := range strings.SplitSeq(filter, ",") {
		directive = strings.ToLower(strings.TrimSpace(directive))
		level, known := levels[directive[strings.LastIndexByte(directive, '=')+1:]]
		// "hyper=off" silences a part of another program, and not us.
		if known && (level <= slog.LevelError || directive == "off") {
			return level, nil
		}
	}
	return 0, errors.New("want trace, debug, info, warn, error or off, or a filter that begins so, like debug,hyper=info")
}

// NewLogger makes the process's logger, and the level that it has from then on. level is what
// [ParseLevel] reads; format is text or json.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, *slog.LevelVar, error) {
	l, err := ParseLevel(level)
	if err != nil {
		return nil, nil, fmt.Errorf("NGIT_LOG_LEVEL is %q: %w", level, err)
	}
	current := &slog.LevelVar{}
	current.Set(l)
	opts := &slog.HandlerOptions{Level: current}
	switch strings.ToLower(format) {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), current, nil
	case "json":
		opts.ReplaceAttr = spellOutDuration
		return slog.New(slog.NewJSONHandler(w, opts)), current, nil
	}
	return nil, nil, fmt.Errorf("NGIT_LOG_FORMAT is %q: want text or json", format)
}

// spellOutDuration writes a duration as text logs have it ("2m40s"): bare nanoseconds, as JSON has
// it otherwise, do not say their unit.
func spellOutDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// Readiness collects what must hold before traffic should come. The zero value is ready.
type Readiness struct{ checks, notes sync.Map } // functions by name

// Add names a condition; check gives nil when it holds. It is called on every request for /readyz
// and must be quick.
func (r *Readiness) Add(name string, check func() error) {
	r.checks.Store(name, func() string {
		if err := check(); err != nil {
			return err.Error()
		}
		return ""
	})
}

// Note names something that /readyz reports besides, though the process is ready; "": nothing.
func (r *Readiness) Note(name string, note func() string) { r.notes.Store(name, note) }

// Failing returns the conditions that do not hold, by name, with the reason.
func (r *Readiness) Failing() map[string]string { return said(&r.checks) }

// Troubles returns the conditions that do not hold, and the notes.
func (r *Readiness) Troubles() map[string]string {
	all := r.Failing()
	maps.Copy(all, said(&r.notes))
	return all
}

func said(all *sync.Map) map[string]string {
	texts := map[string]string{}
	for name, say := range all.Range {
		if text := say.(func() string)(); text != "" {
			texts[name.(string)] = text
		}
	}
	return texts
}

// Mount serves /healthz and /readyz, and /metrics if gatherer is not nil.
func Mount(mux *http.ServeMux, ready *Readiness, gatherer prometheus.Gatherer) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		failing := ready.Failing()
		w.Header().Set("Content-Type", "application/json")
		if len(failing) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		answer := map[string]any{"ready": len(failing) == 0, "failing": failing}
		if notes := said(&ready.notes); len(notes) > 0 {
			answer["notes"] = notes
		}
		json.NewEncoder(w).Encode(answer)
	})
	if gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
}

// Rejections is the counter of rejected events by kind and reason, which the gateway and ingest
// share where they run in one process.
func Rejections(r prometheus.Registerer) (*prometheus.CounterVec, error) {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ngit_events_rejected_total", Help: "Events rejected."}, []string{"kind", "reason"})
	err := r.Register(counter)
	if known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return known.ExistingCollector.(*prometheus.CounterVec), nil
	}
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return counter, nil
}

// KindLabel names the kinds that a git relay knows; every other is one label, so that strangers
// cannot multiply it.
func KindLabel(kind int) string {
	if nostr.KindOf(kind).Counted {
		return strconv.Itoa(kind)
	}
	return "other"
}

// EventTypes are the types of events that dashboards of rejected events know.
var EventTypes = []string{"announcement", "state", "other"}

// EventTypeLabel is which of [EventTypes] a kind is.
func EventTypeLabel(kind int) string {
	switch kind {
	case nostr.KindAnnouncement:
		return "announcement"
	case nostr.KindState:
		return "state"
	}
	return "other"
}
