package purgatory_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository/gittest"
)

// traced returns a git that tells of every process, those that git itself starts too, and how often
// each flushed to the disk.
func traced(t testing.TB) (program string, cost func() (processes, flushes int)) {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	events, program := filepath.Join(folder, "events"), filepath.Join(folder, "git")
	script := fmt.Sprintf("#!/bin/sh\nGIT_TRACE2_EVENT='%s' exec '%s' \"$@\"\n", events, git)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	flushed := regexp.MustCompile(`"key":"fsync/hardware-flush","value":"(\d+)"`)
	return program, func() (processes, flushes int) {
		data, err := os.ReadFile(events)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		os.Remove(events)
		for _, m := range flushed.FindAllSubmatch(data, -1) {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				t.Fatal(err)
			}
			flushes += n
		}
		return bytes.Count(data, []byte(`"event":"start"`)), flushes
	}
}

// BenchmarkPush is one commit on its way from the user's git to being served: through the door and
// the worker's port, with ingest's verdicts.
func BenchmarkPush(b *testing.B) {
	program, cost := traced(b)
	w := newWorld(b, "--git-binary="+program)
	work := gittest.NewWork(b)
	w.in.accept(announcement(b, "announcement", alice, "x"))
	processes, flushes := 0, 0
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		st := state("state", alice, "x", nostr.Timestamp(1001+i), work.Commit("a", fmt.Sprint(i)))
		w.in.holds("x", st, proto.SourceUser, time.Hour)
		eventually(b, "the state was looked at", func() bool { return w.metric("purgatory_sync_queue_size") == 1 })
		cost()
		b.StartTimer()
		if out, err := w.push(work, alice, "x", "main"); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
		b.StopTimer()
		p, f := cost()
		processes, flushes = processes+p, flushes+f
		b.StartTimer()
	}
	b.ReportMetric(float64(processes)/float64(b.N), "processes/op")
	b.ReportMetric(float64(flushes)/float64(b.N), "fsyncs/op")
}
