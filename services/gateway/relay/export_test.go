package relay

import "time"

// Occupy takes all turns of counts, and gives them back when free is called.
func (r *Relay) Occupy() (free func()) {
	for range cap(r.counting) {
		r.counting <- struct{}{}
	}
	return func() {
		for range cap(r.counting) {
			<-r.counting
		}
	}
}

// WithCountTime sets how long a count may take. It is for relays that nobody is connected to yet.
func (r *Relay) WithCountTime(d time.Duration) { r.timing.count = d }
