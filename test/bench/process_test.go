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
	cpu      time.Duration // user and system time, without children
	children time.Duration // that of children that have ended: git
	peak     int64         // most resident memory, in bytes
	files    int64         // resident now of files: the program itself, which its processes share
}

// tick is the unit of times in /proc: USER_HZ is 100 on every Linux.
const tick = 10 * time.Millisecond

// used reads what a process has used.
func used(t testing.TB, pid int) (u usage) {
	t.Helper()
	u.cpu, u.children = cpuTimes(t, fmt.Sprintf("/proc/%d/stat", pid))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for name, into := range map[string]*int64{"VmHWM:": &u.peak, "RssFile:": &u.files} {
		_, size, found := strings.Cut(string(status), name)
		if !found {
			t.Fatal("/proc does not say how much memory is resident")
		}
		kib, err := strconv.ParseInt(strings.Fields(size)[0], 10, 64)
		must(t, err)
		*into = kib << 10
	}
	return u
}

// cpuTimes reads the user and system time of a process or a thread from its stat file, and that of
// its children.
func cpuTimes(t testing.TB, path string) (own, children time.Duration) {
	t.Helper()
	stat, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("measure CPU time, which needs Linux: %v", err)
	}
	// The name, in parentheses, may hold spaces. utime, stime, cutime and cstime are the 14th to
	// 17th field.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for i, into := range []*time.Duration{&own, &own, &children, &children} {
		n, err := strconv.ParseInt(fields[11+i], 10, 64)
		must(t, err)
		*into += time.Duration(n) * tick
	}
	return own, children
}
