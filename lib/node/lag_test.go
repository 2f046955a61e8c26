package node

import (
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

func TestLag(t *testing.T) {
	t.Parallel()
	n := open(t, settings(t))
	defer n.Close()
	_, err := n.Bus.JS.Publish(t.Context(), proto.SubjectEventsMark, nil)
	must(t, err)
	n.Projection("index", proto.StreamEvents, func() uint64 { return 0 })
	n.Projection("ahead", proto.StreamEvents, func() uint64 { return 101 }) // of an end that is a moment old
	n.Projection("unknown", "GONE", func() uint64 { return 1 })
	want := "# HELP tendril_projection_lag How far a projection of this process is behind the end of its stream, in sequences.\n" +
		"# TYPE tendril_projection_lag gauge\ntendril_projection_lag{projection=\"ahead\"} 0\ntendril_projection_lag{projection=\"index\"} 1\n"
	n.lag.look(t.Context())
	must(t, testutil.CollectAndCompare(n.lag.behind, strings.NewReader(want)))
}

// TestObservationOfUp: one process with everything has its metrics at the front door, or on the
// port that the operator names, and there only.
func TestObservationOfUp(t *testing.T) {
	t.Parallel()
	for address, atFront := range map[string]bool{"": true, "127.0.0.1:0": false} {
		s := settings(t, "--database-backend=memory", "--nats-listen=none", "--observe-address="+address)
		n, err := Open(t.Context(), "up", s, slog.New(slog.DiscardHandler), false, Service{Provisions: true})
		must(t, err)
		defer n.Close()
		_, pattern := n.AtFront.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: "/metrics"}})
		if own := n.Announced("observation"); (pattern != "") != atFront || (own == "") != atFront {
			t.Errorf("observed at %q: at the front door %q, on its own port %q", address, pattern, own)
		}
		if _, pattern := n.AtFront.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: "/debug/pprof/"}}); pattern != "" {
			t.Error("the front door has profiles")
		}
	}
}

func TestObservation(t *testing.T) {
	t.Parallel()
	nats := nettest.NewNATS(t, "")
	s := settings(t, "--nats-url="+nats.URL, "--observe-address=127.0.0.1:0")
	n, err := Open(t.Context(), "test", s, slog.New(slog.DiscardHandler), true, Service{Provisions: true})
	must(t, err)
	defer n.Close()
	get := func(path string, code int, part string) {
		t.Helper()
		res, err := http.Get(n.Announced("observation") + path)
		must(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != code || !strings.Contains(string(body), part) {
			t.Errorf("%s: %d %s, %v; want %d and %s", path, res.StatusCode, body, err, code, part)
		}
	}
	get("/readyz", http.StatusOK, `"ready":true`)
	get("/healthz", http.StatusOK, "ok")
	get("/metrics", http.StatusOK, "ngit_build_info{")
	get("/debug/pprof/", http.StatusOK, "goroutine")
	get("/loglevel", http.StatusOK, "info")
	if _, pattern := n.AtFront.Handler(&http.Request{Method: "GET", URL: &url.URL{Path: "/metrics"}}); pattern != "" {
		t.Error("the front door has metrics too")
	}
	nats.Stop()
	fixture.Await(t, "the connection is lost", func() bool { return !n.Bus.Conn.IsConnected() })
	get("/readyz", http.StatusServiceUnavailable, "not connected to NATS")
}
