package node

import (
	"runtime"
	"testing"
	"time"
)

func TestGrowth(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	busy, idle := Service{Name: "busy"}, Service{Name: "idle", Idle: true}
	lone, shared := []Service{Observation, idle}, []Service{Observation, idle, busy}
	for _, c := range []struct {
		services []Service
		live     uint64
		want     int // percent
	}{
		{shared, 0, 3200}, {shared, mib, 3200}, {shared, 16 * mib, 200}, {shared, 32 * mib, 100}, {shared, 64 * mib, 50},
		{shared, 100 * mib, 32}, {shared, 115 * mib, 28}, {shared, 4096 * mib, 28},
		{[]Service{busy}, mib, 3200}, {[]Service{idle}, mib, 200},
		// Only a process all of whose services have little to do keeps little.
		{lone, 0, 200}, {lone, mib, 200}, {lone, 8 * mib, 25}, {lone, 32 * mib, 12}, {lone, 4096 * mib, 12},
	} {
		if got := paceOf(c.services)(c.live); got != c.want {
			t.Errorf("%d services with %d MiB in use: %d%%, want %d%%", len(c.services), c.live/mib, got, c.want)
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
