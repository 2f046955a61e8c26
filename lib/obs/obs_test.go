package obs

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

const wantLevel = "want trace, debug, info, warn, error or off, or a filter that begins so, like debug,hyper=info"

func TestParseLevel(t *testing.T) {
	t.Parallel()
	const off = slog.Level(math.MaxInt)
	for filter, want := range map[string]slog.Level{
		"trace": slog.LevelDebug, "DEBUG": slog.LevelDebug, " info ": slog.LevelInfo, "warning": slog.LevelWarn,
		"Error": slog.LevelError, "off": off,
		"debug,hyper=info":                  slog.LevelDebug,
		"ngit_grasp=debug,actix_web=info":   slog.LevelDebug,
		"info,ngit_grasp=debug":             slog.LevelInfo,
		"hyper=off, warn":                   slog.LevelWarn,
		"hyper,ngit_grasp=error":            slog.LevelError,
		"ngit_grasp[span{field=1}]=trace,x": slog.LevelDebug,
	} {
		if got, err := ParseLevel(filter); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", filter, got, err, want)
		}
	}
	for _, filter := range []string{"", "loud", "hyper", "hyper=off", "debugging", "=", ","} {
		if got, err := ParseLevel(filter); err == nil || err.Error() != wantLevel {
			t.Errorf("%q: %v, %v", filter, got, err)
		}
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"debug": 4, "INFO": 3, "warn": 2, "error": 1, "trace": 4, "warn,ngit_grasp=debug": 2} {
		var out strings.Builder
		log, err := NewLogger(&out, level, "json")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(t.Context(), l, "said", "relay", "a.example")
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != want {
			t.Errorf("%s: %d lines, want %d", level, len(lines), want)
		}
		var line struct{ Level, Msg, Relay string }
		if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || line.Msg != "said" || line.Relay != "a.example" {
			t.Errorf("%s: %s, %v", level, lines[0], err)
		}
	}
	var out strings.Builder
	log, err := NewLogger(&out, "info", "TEXT")
	if err != nil {
		t.Fatal(err)
	}
	if log.Info("said", "relay", "a.example"); !strings.Contains(out.String(), "level=INFO msg=said relay=a.example") {
		t.Errorf("text: %s", out.String())
	}
	for want, given := range map[string][2]string{
		`NGIT_LOG_LEVEL is "loud": ` + wantLevel:      {"loud", "text"},
		`NGIT_LOG_FORMAT is "xml": want text or json`: {"info", "xml"},
	} {
		if _, err := NewLogger(&out, given[0], given[1]); err == nil || err.Error() != want {
			t.Errorf("%v: %v", given, err)
		}
	}
}

// TestDurationsAreText in both formats.
func TestDurationsAreText(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": " v=2m40s\n", "json": `"v":"2m40s"}` + "\n"} {
		var out strings.Builder
		log, err := NewLogger(&out, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		if log.Info("said", "v", 160*time.Second); !strings.HasSuffix(out.String(), want) {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}

func TestReadinessIsAllOfItsChecks(t *testing.T) {
	t.Parallel()
	var r Readiness
	if failing := r.Failing(); len(failing) > 0 {
		t.Errorf("the zero value: %v", failing)
	}
	var broken error
	r.Add("bus", func() error { return broken })
	r.Add("index", func() error { return nil })
	if failing := r.Failing(); len(failing) > 0 {
		t.Errorf("all hold: %v", failing)
	}
	broken = errors.New("not connected")
	if failing := r.Failing(); len(failing) != 1 || failing["bus"] != "not connected" {
		t.Errorf("one fails: %v", failing)
	}
	r.Add("bus", func() error { return nil }) // a service that starts again says again how it stands
	if failing := r.Failing(); len(failing) > 0 {
		t.Errorf("replaced: %v", failing)
	}
}

func TestMount(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(BuildInfo())
	for name, c := range map[string]struct {
		gatherer prometheus.Gatherer
		failing  bool
		want     map[string]int
	}{
		"ready":           {registry, false, map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200}},
		"not ready":       {registry, true, map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200}},
		"without metrics": {nil, false, map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 404}},
	} {
		var ready Readiness
		if c.failing {
			ready.Add("bus", func() error { return errors.New("gone") })
		}
		mux := http.NewServeMux()
		Mount(mux, &ready, c.gatherer)
		for path, want := range c.want {
			res := httptest.NewRecorder()
			mux.ServeHTTP(res, httptest.NewRequest(http.MethodGet, path, nil))
			if res.Code != want {
				t.Errorf("%s, %s: %d, want %d", name, path, res.Code, want)
			}
		}
	}
	if n, err := testutil.GatherAndCount(registry, "ngit_build_info"); err != nil || n != 1 {
		t.Errorf("ngit_build_info: %d, %v", n, err)
	}
}

func TestKindLabel(t *testing.T) {
	t.Parallel()
	for kind, want := range map[int]string{0: "0", 1621: "1621", 30617: "30617", 2: "other", -1: "other", 39999: "other"} {
		if got := KindLabel(kind); got != want {
			t.Errorf("kind %d: %q, want %q", kind, got, want)
		}
	}
}
