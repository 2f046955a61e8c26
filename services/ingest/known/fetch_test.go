package known_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
)

// healed is a rejection of which something that it missed has come.
func healed(n int, relays ...string) proto.RejectedEvent {
	r := record(n)
	r.FetchFrom = relays
	return r
}

// asked are the ids to ask for, by the relays to ask.
func asked(x *known.Rejected, after time.Duration) string {
	var all []string
	for _, f := range x.Fetches(begun.Add(after)) {
		all = append(all, fmt.Sprintf("%s: %d", strings.Join(f.Relays, " "), len(f.IDs)))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// TestHealedEventsAreAskedFor: soon, and twice again, until they are decided again. They count as
// rejected no more.
func TestHealedEventsAreAskedFor(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("")}
	l.add(begun, record(1, "d:tree"), healed(1, "wss://a", "wss://b"), healed(2, "wss://a", "wss://b"), healed(3, "wss://c"), record(4, "d:tree"))
	waiting, _ := l.x.Waiting("d:tree", 10, func(string) bool { return false })
	if _, rejected := l.x.Find(id(1), begun); rejected || len(waiting) != 1 || len(l.x.Matching(nostr.Filter{}, begun)) != 1 {
		t.Error("a healed event counts as rejected")
	}
	for _, step := range []struct {
		after time.Duration
		want  string
	}{
		{time.Second, ""}, {2 * time.Second, "wss://a wss://b: 2; wss://c: 1"}, {3 * time.Second, ""}, {time.Minute, "wss://a wss://b: 2; wss://c: 1"},
	} {
		if got := asked(l.x, step.after); got != step.want {
			t.Errorf("after %v: %q, want %q", step.after, got, step.want)
		}
	}
	l.add(begun.Add(2*time.Minute), record(1, "d:bush")) // decided again
	l.read(record(3), nil, begun.Add(2*time.Minute))     // here
	if got := asked(l.x, 10*time.Minute); got != "wss://a wss://b: 1" {
		t.Errorf("%q", got)
	}
	if got := asked(l.x, 20*time.Minute); got != "" {
		t.Errorf("asked for a fourth time: %q", got)
	}
}

// TestARestartAsksOnce: who begins to write later asks once for what was healed lately.
func TestARestartAsksOnce(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("")}
	l.add(begun, healed(1, "wss://a"))
	l.add(begun.Add(50*time.Minute), healed(2, "wss://b"))
	if got := asked(l.x, time.Hour+time.Minute); got != "wss://b: 1" {
		t.Errorf("%q", got)
	}
	if got := asked(l.x, time.Hour+2*time.Minute); got != "" {
		t.Errorf("%q", got)
	}
}

// TestOneArrivalKeepsNoOtherBack: of a crowd that one arrival has healed a few are asked for at a
// time, and what another has healed has its turn at once.
func TestOneArrivalKeepsNoOtherBack(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("")}
	for n := range 9000 {
		l.add(begun, healed(n, "wss://crowd"))
	}
	l.add(begun.Add(time.Second), healed(9001, "wss://victim", "wss://other"))
	if got := asked(l.x, 3*time.Second); got != "wss://crowd: 31; wss://victim wss://other: 1" {
		t.Errorf("%q", got)
	}
	for n := range 3000 { // beyond what is kept
		l.add(begun, healed(20_000+n, "wss://crowd"))
	}
	rounds := 0
	for asked(l.x, 4*time.Second) != "" {
		rounds++
	}
	if rounds < 200 || rounds > 10_000/proto.MaxFetched+1 {
		t.Errorf("%d rounds", rounds)
	}
}
