package node

import (
	"runtime"
	"testing"
	"time"
)

func TestGrowth(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		live uint64
		want int // percent
	}{
		{0, 3600}, {mib, 3600}, {18 * mib, 200}, {36 * mib, 100}, {72 * mib, 50}, {100 * mib, 36}, {101 * mib, 36}, {4096 * mib, 36},
	} {
		if got := growthOf(c.live); got != c.want {
			t.Errorf("with %d MiB in use: %d%%, want %d%%", c.live/mib, got, c.want)
		}
	}
}

// What is in use is told at once, and after one collection as after the next.
func TestAfterEachCollection(t *testing.T) {
	t.Parallel()
	told := make(chan uint64, 1)
	afterEachCollection(func(live uint64) {
		select {
		case told <- live:
		default:
		}
	})
	kept := make([]byte, 64<<20)
	deadline := time.After(time.Minute)
	for heard := 0; heard < 3; {
		runtime.GC()
		select {
		case live := <-told:
			if live >= uint64(len(kept)) {
				heard++
			}
		case <-deadline:
			t.Fatal("collections are not told")
		default:
			runtime.Gosched()
		}
	}
	runtime.KeepAlive(kept)
}
