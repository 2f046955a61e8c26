package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/corpus"
)

// limits is what the machine can do at the moment.
type limits struct {
	verified float64 // signatures a second of CPU on one core
	share    float64 // of one core that one busy thread gets: less than 1 if others work too
	synced   float64 // writes of 4 KiB a second, each with its fsync
}

func (l limits) String() string {
	return fmt.Sprintf("%.0f signatures/s on one core (a thread gets %.0f%% of one), %.0f fsyncs/s", l.verified, 100*l.share, l.synced)
}

// measuring is how long each limit is measured.
const measuring = time.Second

// measureLimits finds them out.
func measureLimits(t *testing.T) (l limits) {
	t.Helper()
	lines := corpus.Threads(corpus.Spec{Repositories: 1}, 0, 50)
	events := make([]nostr.Event, len(lines))
	for i, line := range lines {
		must(t, events[i].UnmarshalJSON(line))
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, before, n := time.Now(), threadTime(t), 0
	for ; time.Since(began) < measuring; n++ {
		if ok, err := events[n%len(events)].CheckSignature(); !ok {
			t.Fatal(err)
		}
	}
	cpu := threadTime(t) - before
	l.verified, l.share = float64(n)/cpu.Seconds(), cpu.Seconds()/time.Since(began).Seconds()

	file, err := os.Create(filepath.Join(t.TempDir(), "synced"))
	must(t, err)
	defer file.Close()
	block := make([]byte, 4096)
	began, n = time.Now(), 0
	for ; time.Since(began) < measuring; n++ {
		if _, err := file.Write(block); err != nil {
			t.Fatal(err)
		}
		must(t, file.Sync())
	}
	l.synced = float64(n) / time.Since(began).Seconds()
	return l
}

// threadTime is the CPU time that this thread has used.
func threadTime(t *testing.T) time.Duration {
	own, _ := cpuTimes(t, "/proc/thread-self/stat")
	return own
}
