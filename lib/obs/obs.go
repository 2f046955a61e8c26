// Package obs is how a process is watched: its log, its metrics, and whether it lives and is ready (spec/operations.md).
package obs

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewLogger makes the process's logger. level is debug, info, warn or error; format is text or json.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("NGIT_LOG_LEVEL is %q: want debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(format) {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		opts.ReplaceAttr = spellOutDuration
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("NGIT_LOG_FORMAT is %q: want text or json", format)
}

// spellOutDuration writes a duration as text logs have it ("2m40s"): bare nanoseconds, as JSON has it otherwise, do not say their unit.
func spellOutDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// Readiness collects what must hold before traffic should come. The zero value is ready.
type Readiness struct {
	mu     sync.Mutex
	checks map[string]func() error
}

// Add names a condition; check gives nil when it holds. It is called on every request for /readyz and must be quick.
func (r *Readiness) Add(name string, check func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checks == nil {
		r.checks = map[string]func() error{}
	}
	r.checks[name] = check
}

// Failing gives the conditions that do not hold, by name, with the reason.
func (r *Readiness) Failing() map[string]string {
	r.mu.Lock()
	checks := maps.Clone(r.checks)
	r.mu.Unlock()
	failing := map[string]string{}
	for name, check := range checks {
		if err := check(); err != nil {
			failing[name] = err.Error()
		}
	}
	return failing
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
		json.NewEncoder(w).Encode(map[string]any{"ready": len(failing) == 0, "failing": failing})
	})
	if gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
}
