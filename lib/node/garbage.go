package node

import "runtime/debug"

// garbagePercent is how much the heap may grow until garbage is collected, in percent: a fifth less
// memory than with Go's 100, for a little CPU.
const garbagePercent = 50

// paceGarbage sets the pace of garbage collection, unless the environment says it. lookUp is
// os.LookupEnv.
func paceGarbage(lookUp func(name string) (string, bool)) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if value, _ := lookUp(name); value != "" {
			return // Go itself has read it
		}
	}
	debug.SetGCPercent(garbagePercent)
}
