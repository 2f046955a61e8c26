package obs

import (
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const wantLevel = "want trace, debug, info, warn, error or off, or a filter that begins so, like debug,hyper=info"

func TestParseLevel(t *testing.T) {
	t.Parallel()
	for want, filters := range map[slog.Level]string{
		slog.LevelDebug: "trace;DEBUG;debug,hyper=info;ngit_grasp=debug,actix_web=info;ngit_grasp[span{field=1}]=trace,x",
		slog.LevelInfo:  " info ;info,ngit_grasp=debug", slog.LevelWarn: "warning;hyper=off, warn", slog.LevelError: "Error;hyper,ngit_grasp=error", math.MaxInt: "off",
	} {
		for filter := range strings.SplitSeq(filters, ";") {
			if got, err := ParseLevel(filter); err != nil || got != want {
				t.Errorf("%q: %v, %v; want %v", filter, got, err, want)
			}
		}
	}
	for _, filter := range []string{"", "loud", "hyper", "hyper=off", "debugging", "=", ","} {
		if got, err := ParseLevel(filter); err == nil || err.Error() != wantLevel {
			t.Errorf("%q: %v, %v", filter, got, err)
		}
	}
}

// TestLogger has the level and the format that are asked for; durations are text in both.
func TestLogger(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]int{"debug": 4, "INFO": 3, "warn": 2, "error": 1, "trace": 4, "warn,ngit_grasp=debug": 2} {
		for format, last := range map[string]string{"TEXT": "level=ERROR msg=said v=2m40s\n", "json": `"level":"ERROR","msg":"said","v":"2m40s"}` + "\n"} {
			var out strings.Builder
			log, _, err := NewLogger(&out, level, format)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
				log.Log(t.Context(), l, "said", "v", 160*time.Second)
			}
			if strings.Count(out.String(), "\n") != want || !strings.HasSuffix(out.String(), last) {
				t.Errorf("%s as %s: %s", level, format, out.String())
			}
		}
	}
	for want, given := range map[string][2]string{
		`NGIT_LOG_LEVEL is "loud": ` + wantLevel:      {"loud", "text"},
		`NGIT_LOG_FORMAT is "xml": want text or json`: {"info", "xml"},
	} {
		if _, _, err := NewLogger(nil, given[0], given[1]); err == nil || err.Error() != want {
			t.Errorf("%v: %v", given, err)
		}
	}
}

// TestLogLevelAtRunTime changes the level of a log that is in use, and refuses what is no level.
func TestLogLevelAtRunTime(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log, level, err := NewLogger(&out, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	MountPrivate(mux, level, log)
	ask := func(method, body string, code int, want string) {
		t.Helper()
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(method, "/loglevel", strings.NewReader(body)))
		if w.Code != code || strings.TrimSpace(w.Body.String()) != want {
			t.Errorf("%s %q: %d %s; want %d %s", method, body, w.Code, w.Body, code, want)
		}
	}
	log.Debug("early")
	ask("GET", "", 200, "info")
	ask("PUT", "debug\n", 200, "debug")
	log.Debug("late")
	ask("PUT", "loud", 400, wantLevel)
	ask("PUT", strings.Repeat("debug,", 50), 400, "this is too long for a level")
	ask("GET", "", 200, "debug")
	ask("PUT", "off", 200, "off")
	log.Error("last")
	if got := out.String(); strings.Contains(got, "early") || !strings.Contains(got, "late") || strings.Contains(got, "last") ||
		!strings.Contains(got, "from=info to=debug") {
		t.Errorf("the log: %s", got)
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/debug/pprof/cmdline", nil))
	if w.Code != 200 {
		t.Errorf("/debug/pprof/cmdline: %d", w.Code)
	}
}

// TestReadiness: ready is what no check fails; a check replaces the one of its name, as that of a
// service that starts again, and a note is told besides.
func TestReadiness(t *testing.T) {
	t.Parallel()
	var r Readiness
	registry := prometheus.NewRegistry()
	registry.MustRegister(BuildInfo())
	served, bare := http.NewServeMux(), http.NewServeMux()
	Mount(served, &r, registry)
	Mount(bare, &r, nil)
	expect := func(mux *http.ServeMux, path string, code int, part string) {
		t.Helper()
		res := httptest.NewRecorder()
		mux.ServeHTTP(res, httptest.NewRequest(http.MethodGet, path, nil))
		if res.Code != code || !strings.Contains(res.Body.String(), part) {
			t.Errorf("%s: %d %s; want %d and %s", path, res.Code, res.Body, code, part)
		}
	}
	expect(served, "/readyz", 200, `{"failing":{},"ready":true}`)
	r.Add("bus", func() error { return errors.New("gone") })
	r.Add("index", func() error { return nil })
	r.Note("full", func() string { return "the disk" })
	for _, mux := range []*http.ServeMux{served, bare} {
		expect(mux, "/readyz", 503, `{"failing":{"bus":"gone"},"notes":{"full":"the disk"},"ready":false}`)
		expect(mux, "/healthz", 200, "ok")
	}
	if troubles := r.Troubles(); len(troubles) != 2 {
		t.Errorf("troubles: %v", troubles)
	}
	r.Add("bus", func() error { return nil })
	expect(served, "/readyz", 200, `"ready":true`)
	expect(served, "/metrics", 200, "ngit_build_info{")
	expect(bare, "/metrics", 404, "")
}

func TestKindLabel(t *testing.T) {
	t.Parallel()
	for kind, want := range map[int]string{0: "0", 1621: "1621", 30617: "30617", 2: "other", -1: "other", 39999: "other"} {
		if got := KindLabel(kind); got != want {
			t.Errorf("kind %d: %q, want %q", kind, got, want)
		}
	}
}
