package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// usage is what a process has used since its start.
type usage struct {
	cpu  time.Duration // user and system time, without children
	peak int64         // most resident memory, in bytes
}

// tick is the unit of times in /proc: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

// used reads what a process has used.
func used(t testing.TB, pid int) (u usage) {
	t.Helper()
	u.cpu = cpuTime(t, fmt.Sprintf("/proc/%d/stat", pid))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, found := strings.Cut(string(status), "VmHWM:")
	if !found {
		t.Fatal("/proc does not say how much memory was resident")
	}
	kib, err := strconv.ParseInt(strings.Fields(peak)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	u.peak = kib << 10
	return u
}

// cpuTime reads the user and system time of a process or a thread from its stat file.
func cpuTime(t testing.TB, path string) (sum time.Duration) {
	t.Helper()
	stat, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("measure CPU time, which needs Linux: %v", err)
	}
	// The name, in parentheses, may hold spaces. utime and stime are the 14th and 15th field.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += time.Duration(n) * tick
	}
	return sum
}
