package e2e

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// TestTraces: one trace holds the way of an event from the relay through ingest, where it was held,
// to the front door. Where nothing takes the spans all else is the same. Without an endpoint no
// message has a context.
func TestTraces(t *testing.T) {
	t.Parallel()
	for endpoint, warnings := range map[string]int{"collector": 0, "http://127.0.0.1:1": 1, "": 0} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			s, mu, got := world.NewScene(t), sync.Mutex{}, "" // a span a line, behind its resource
			collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				var sent struct {
					ResourceSpans []struct {
						Resource   json.RawMessage
						ScopeSpans [1]struct{ Spans []json.RawMessage }
					}
				}
				if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, of := range sent.ResourceSpans {
					for _, span := range of.ScopeSpans[0].Spans {
						got += strings.ToLower(string(of.Resource)+string(span)) + "\n"
					}
				}
			}))
			defer collector.Close()
			s.Git.Shut(true)
			p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_BSP_SCHEDULE_DELAY": "5",
				"OTEL_EXPORTER_OTLP_ENDPOINT": strings.Replace(endpoint, "collector", collector.URL, 1)})
			bus := world.Listen(t, p.NATS)
			fixture.Await(t, "the announcement and its state are held", func() bool { return world.HeldEvents(t, p) == 2 })
			s.Git.Shut(false)
			p.Serves(s.Announcement)
			at, _ := bus.HeardAfter(0, "grasp.event.30617.", s.Announcement.ID)
			context := bus.Said()[at].Header.Get("traceparent")
			fixture.Must(t, p.Stop()) // what is left is sent
			if n := strings.Count(p.Output(), "traces are not exported"); n != warnings || (context == "") != (endpoint == "") {
				t.Errorf("context %q, %d warnings", context, n)
			}
			for _, want := range []string{"relayconn receive.*ws:", "ingest ingest.*held", "ingest ingest.*accepted", "gateway serve.*served"} {
				// Between the two stand the ids of the trace and of its first span, the parent of the others.
				ids := strings.ReplaceAll(strings.TrimPrefix(strings.TrimSuffix(context, "01"), "00"), "-", ".*")
				if endpoint == "collector" && !regexp.MustCompile("tendril-"+strings.Replace(want, " ", ids, 1)).MatchString(got) {
					t.Errorf("%s: no span of it %s in\n%s", context, want, got)
				}
			}
		})
	}
}
