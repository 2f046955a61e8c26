package processors

import (
	"runtime"
	"testing"
)

func TestThreads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		count, machine int
		chosen         bool
		want           int
	}{
		"one processor":              {1, 1, false, 2},
		"two processors":             {2, 2, false, 4},
		"four processors":            {4, 4, false, 8},
		"enough processors":          {8, 8, false, 8},
		"a limit of the container's": {2, 16, false, 2},
		"the operator's choice":      {2, 2, true, 2},
	} {
		if got := threads(c.count, c.machine, c.chosen); got != c.want {
			t.Errorf("%s: %d threads, want %d", name, got, c.want)
		}
	}
}

// No t.Parallel: it changes what the whole process has.
func TestSpread(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	t.Setenv("GOMAXPROCS", "")
	Spread()
	if want := threads(before, runtime.NumCPU(), false); runtime.GOMAXPROCS(0) != want {
		t.Errorf("%d threads, want %d", runtime.GOMAXPROCS(0), want)
	}
	if Count() != before {
		t.Errorf("%d processors, want the %d there were", Count(), before)
	}
}
