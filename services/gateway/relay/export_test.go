package relay

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Occupy takes all places of counts, and gives them back when free is called.
func (r *Relay) Occupy() (free func()) {
	var taken []func()
	for n := range runtime.GOMAXPROCS(0) {
		release, err := r.gathering.Acquire(context.Background(), fmt.Sprint(n))
		if err != nil {
			panic(err)
		}
		taken = append(taken, release)
	}
	return func() {
		for _, release := range taken {
			release()
		}
	}
}

// WithCountTime sets how long a count may take. It is for relays without connections.
func (r *Relay) WithCountTime(d time.Duration) { r.timing.count = d }

// KeptBytes is how many bytes clients make the relay keep.
func (r *Relay) KeptBytes() int64 {
	kept, _, _ := r.memory.Counts(0)
	return kept
}
