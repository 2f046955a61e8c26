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

// used reads from /proc what a process has used.
func used(t testing.TB, pid int) (u usage) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("measure a process, which needs Linux: %v", err)
	}
	// The name, in parentheses, may hold spaces. utime and stime are the 14th and 15th field.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += time.Duration(n) * tick
	}
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
