package purgatory_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/gittest"
)

// TestACrowdAddsNothingToAPush: whatever strangers announce and send for the owner's identifier, the
// owner's push starts as many git processes in the owner's repository as before, and asks ingest as
// often.
func TestACrowdAddsNothingToAPush(t *testing.T) {
	program, processes := counted(t, alice)
	w := newWorldAlone(t, "--git-binary="+program, "--hunt-backoff-base=1h", "--hunt-backoff-max=1h")
	w.pushFirst()
	quiet := func() {
		last, since := -1, time.Now()
		eventually(t, "nothing is under way", func() bool {
			if n := processes(); n != last {
				last, since = n, time.Now()
			}
			return time.Since(since) > 3*time.Second
		})
	}
	stranger := func(row, n int) string { return fmt.Sprintf("%032x%032x", row+1, n+1) }
	push := func(at nostr.Timestamp) (steps [2]int) {
		t.Helper()
		st := state("state", alice, "x", at, w.work.Commit("a", fmt.Sprint(at)))
		w.in.holds("x", st, proto.SourceUser, time.Hour)
		quiet()
		before := processes()
		w.pushes(alice, "x", "main")
		return [2]int{processes() - before, w.in.times(st.ID)}
	}
	at := nostr.Timestamp(1002)
	alone := push(at)
	for row, tc := range []struct {
		crowd string
		size  int
		send  func(key string)
	}{
		{"who announce it", 1000, func(key string) { w.in.accept(announcement(t, "other", key, "x")) }},
		{"who fill purgatory", 1000, func(key string) {
			w.in.holds("x", announcement(t, "held", key, "x"), proto.SourceLive, time.Hour)
			w.in.holds("x", state("held", key, "x", 1, strings.Repeat("9", 40)), proto.SourceLive, time.Hour)
		}},
		{"who offer pull requests", 300, func(key string) {
			w.in.holds("x", pull("pull", key, strings.Repeat("8", 40), alice, "x"), proto.SourceLive, time.Hour)
		}},
		{"who name the owner as maintainer", 30, func(key string) {
			fan := announcement(t, "fan", key, "x")
			fan.Tags = append(fan.Tags, nostr.Tag{"maintainers", alice})
			w.in.accept(finish(fan))
		}},
	} {
		for n := range tc.size {
			tc.send(stranger(row, n))
		}
		// One look for the objects that all of the pull requests name comes on top. What is still under
		// way for the crowd may add to a push, but not to every one.
		var among [2]int
		for range 5 {
			at++
			if among = push(at); among[0] <= alone[0]+1 {
				break
			}
		}
		if among[0] > alone[0]+1 || among[1] != alone[1] {
			t.Errorf("a push alone takes %d git processes and %d releases, and %d and %d among %d %s", alone[0], alone[1], among[0], among[1], tc.size, tc.crowd)
		}
	}
}

// counted returns a git that notes of every process that works in an owner's repositories, and how
// many there were.
func counted(t *testing.T, owner string) (program string, processes func() int) {
	t.Helper()
	notes := filepath.Join(t.TempDir(), "notes")
	program = gittest.Script(t, fmt.Sprintf(`case "$GIT_DIR" in */%s/*) echo "$1" >> '%s' ;; esac; exec git "$@"`, npub(t, owner), notes))
	return program, func() int {
		data, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("\n"))
	}
}
