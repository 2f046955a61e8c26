package ingest_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest"
)

func settings(t *testing.T, dir string) config.Settings {
	t.Helper()
	s, err := config.Process().Parse([]string{"--domain=git.example.com", "--relay-data-path=" + dir, "--nats-listen=none", "--worker-ttl=1h", "--shutdown-wait=10m"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// running is the service in a node of its own.
type running struct {
	*node.Node
	stop func()
}

func run(t *testing.T, dir string) running {
	t.Helper()
	n, err := node.Open(t.Context(), "ingest", settings(t, dir), slog.New(slog.DiscardHandler), false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx, node.Service{Name: "ingest", Run: ingest.Run}) }()
	return running{Node: n, stop: func() {
		cancel()
		if err := errors.Join(<-done, n.Close()); err != nil {
			t.Error(err)
		}
	}}
}

func (r running) ask(t *testing.T, ev *nostr.Event) proto.Verdict {
	t.Helper()
	sub, err := r.Bus.Conn.SubscribeSync(proto.VerdictSubject("test"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	data, err := ev.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	m := &nats.Msg{Subject: proto.LaneUser.Subject(), Data: data, Header: nats.Header{}}
	m.Header.Set(proto.HeaderReply, sub.Subject)
	if _, err := r.Bus.JS.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	answer, err := sub.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var v proto.Verdicts
	if err := json.Unmarshal(answer.Data, &v); err != nil || len(v.Verdicts) != 1 {
		t.Fatalf("%s, %v", answer.Data, err)
	}
	return v.Verdicts[0]
}

func grasps() *nostr.Event {
	ev := &nostr.Event{PubKey: strings.Repeat("a", 64), Kind: 10317, CreatedAt: 1000, Tags: nostr.Tags{{"g", "wss://git.example.com"}}, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
}

func TestServiceFromStartToRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := run(t, dir)
	if v := r.ask(t, grasps()); v.Outcome != proto.Accepted {
		t.Fatalf("verdict: %+v", v)
	}
	deadline := time.Now().Add(time.Minute)
	for len(r.Ready.Failing()) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if failing := r.Ready.Failing(); len(failing) > 0 {
		t.Errorf("not ready: %v", failing)
	}
	families, err := r.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for _, name := range []string{"ngit_events_stored_total", "ngit_sync_events_total", "ngit_ingest_writer", "ngit_ingest_commit_events",
		"ngit_ingest_commit_duration_seconds", "ngit_ingest_event_to_served_seconds"} {
		if values[name] != 1 {
			t.Errorf("%s is %v, want 1", name, values[name])
		}
	}
	r.stop()

	r = run(t, dir)
	defer r.stop()
	if v := r.ask(t, grasps()); v.Outcome != proto.Duplicate {
		t.Errorf("after the restart: %+v", v)
	}
}
