package node

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
)

// How much the heap may grow between two collections of garbage: by leastGrowth, or by so many
// percent of what is in use where that is more. Most of what an event needs on its way is garbage
// soon. With Go's own 100% a process takes twice the memory that it uses; a lower percentage alone
// would have one that uses little collect many times a second when events come by the thousand.
const (
	leastGrowth = 32 << 20
	growth      = 28
	// idleGrowth and idlePercent are the same of a process that has little to do ([Service.Idle]):
	// memory is nearly all that it costs.
	idleGrowth  = 2 << 20
	idlePercent = 12
)

// pace is by how many percent of what is in use the heap may grow.
type pace func(live uint64) int

// paceOf is the pace of a process with these services.
func paceOf(services []Service) pace {
	if slices.ContainsFunc(services, func(s Service) bool { return !s.Idle && !s.Early }) {
		return busyPace
	}
	return idlePace
}

func busyPace(live uint64) int { return int(max(growth, 100*leastGrowth/max(live, 1<<20))) }

func idlePace(live uint64) int { return int(max(idlePercent, 100*idleGrowth/max(live, 1<<20))) }

// paceGarbage sets how often garbage is collected, unless the operator has: see GOGC in the
// documentation of Go's package runtime. A bound by GOMEMLIMIT holds besides.
func paceGarbage(growthOf pace) {
	if os.Getenv("GOGC") != "" {
		return
	}
	set := 0
	afterEachCollection(func(live uint64) {
		// To set it stops everything for a moment.
		if percent := growthOf(live); percent > set+set/16 || percent < set-set/16 {
			debug.SetGCPercent(percent)
			set = percent
		}
	})
}

// afterEachCollection calls fn now, and after each collection of garbage, with the bytes that it
// has found in use.
func afterEachCollection(fn func(live uint64)) {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	// One byte on the heap of which nobody knows is collected each time, which Go tells.
	var arm func()
	arm = func() {
		metrics.Read(sample)
		fn(sample[0].Value.Uint64())
		runtime.AddCleanup(new([16]byte), func(struct{}) { arm() }, struct{}{})
	}
	arm()
}
