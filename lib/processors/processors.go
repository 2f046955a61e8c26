// Package processors knows how many processors this process may use, and has Go use them so that
// nobody waits long for a turn.
package processors

import (
	"os"
	"runtime"
)

// few is up to how many processors goroutines are spread over twice as many threads.
const few = 4

var count = runtime.GOMAXPROCS(0)

// Count is how many processors the process may use: those of the machine, or what a limit of its
// container or the environment variable GOMAXPROCS leaves it. It is what pools of workers are
// measured by.
func Count() int { return count }

// Spread lets more threads run goroutines at once than there are processors, where those are few
// and no limit is set. Call it first of all, once.
//
// Go lets a goroutine run for up to 10 ms when others wait, and does not look at the network while
// anything else can run. While all of few processors are busy with older events, each of the about
// twenty goroutines that a live event passes costs it such a wait. With threads to spare the
// operating system shares the processors out instead, in smaller parts, and to those first who have
// used less (docs/performance.md, Live events).
func Spread() {
	if n := threads(count, runtime.NumCPU(), os.Getenv("GOMAXPROCS") != ""); n != count {
		runtime.GOMAXPROCS(n)
	}
}

// threads is how many threads may run goroutines at once. Under a limit of the container's it is no
// more than that: the time of more threads would be used up sooner, and all of them stopped until
// the next period.
func threads(count, machine int, chosen bool) int {
	if chosen || count < machine || count > few {
		return count
	}
	return 2 * count
}
