package relay

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/services/gateway/turns"
)

// Occupy takes all turns of counts, and gives them back when free is called.
func (r *Relay) Occupy() (free func()) {
	var taken []*turns.Turn
	for n := range countsAtOnce() {
		turn, err := r.counting.Take(context.Background(), fmt.Sprint(n))
		if err != nil {
			panic(err)
		}
		taken = append(taken, turn)
	}
	return func() {
		for _, turn := range taken {
			turn.End()
		}
	}
}

// WithCountTime sets how long a count may take. It is for relays that nobody is connected to yet.
func (r *Relay) WithCountTime(d time.Duration) { r.timing.count = d }

// WaitingBytes is how many bytes of events wait for slow readers.
func (r *Relay) WaitingBytes() int64 { return r.waiting.Bytes() }
