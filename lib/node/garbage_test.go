package node

import (
	"runtime/debug"
	"testing"
)

// TestPaceOfGarbage: the environment comes before our own pace.
func TestPaceOfGarbage(t *testing.T) {
	before := debug.SetGCPercent(123)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for name, want := range map[string]int{"": garbagePercent, "GOGC": 123, "GOMEMLIMIT": 123} {
		debug.SetGCPercent(123)
		paceGarbage(func(asked string) (string, bool) {
			if asked == name {
				return "200", true
			}
			return "", true // an empty variable is none
		})
		if got := debug.SetGCPercent(123); got != want {
			t.Errorf("with %q set: %d, want %d", name, got, want)
		}
	}
}
