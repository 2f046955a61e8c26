package main

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/cmd/tendril/status"
	"tendril.dev/lib/bus/bustest"
)

// all returns what it prints until it ends well.
func (p *program) all(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for p.lines.Scan() {
		out.WriteString(p.lines.Text() + "\n")
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("%v; stderr:\n%s", err, p.stderr.String())
	}
	return out.String()
}

func TestStatusOfARunningSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	up := start(t, dir, append(slices.Clone(domain), "NGIT_WORKER_NAME=one"), "up")
	up.line(t, "listening on ")
	url, _, _ := strings.Cut(up.line(t, "  NATS     "), " ")
	here := []string{"NGIT_NATS_LISTEN=" + strings.TrimPrefix(url, "nats://")}

	table := start(t, dir, here, "status").all(t)
	for _, want := range []string{"NATS      " + url, "writer one, for ", "held      no events", "one             64      0            0"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	var report status.Report
	if err := json.Unmarshal([]byte(start(t, dir, here, "status", "--json").all(t)), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Shards) != 64 || report.Shards[63].Worker != "one" || report.Log.Writer != "one" || len(report.Lanes) != 4 {
		t.Errorf("%+v", report)
	}

	stay := start(t, dir, here, "status", "--json", "--watch")
	for range 2 {
		if err := json.Unmarshal([]byte(stay.line(t, "")), &report); err != nil {
			t.Error(err)
		}
	}
	if err := stay.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stay.all(t)
}

// TestStatusOfAnEmptyServer also shows that it makes nothing on it.
func TestStatusOfAnEmptyServer(t *testing.T) {
	t.Parallel()
	url := bustest.New(t).URL
	p := start(t, t.TempDir(), []string{"NGIT_NATS_URL=" + url}, "status")
	if got := p.fails(t); !strings.HasPrefix(got, "tendril: NATS at nats://") || !strings.HasSuffix(got, " has no streams of Tendril: none has run with it") {
		t.Error(got)
	}
	conn, err := nats.Connect(url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := js.AccountInfo(); err != nil || info.Streams != 0 || info.Consumers != 0 {
		t.Errorf("%+v, %v", info, err)
	}
}
