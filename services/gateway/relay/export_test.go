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

// WaitingBytes is how many bytes of events wait for slow readers.
func (r *Relay) WaitingBytes() int64 { return r.waiting.Bytes() }
