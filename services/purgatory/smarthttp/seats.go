package smarthttp

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"tendril.dev/services/purgatory/repository"
)

// seats are the places of the requests that are under way. One client may have as many as are still
// free. When all are taken a client that has none gets the seat of a request that only waits for
// its own client's network: of the client with most seats, then of the slowest.
type seats struct {
	spared time.Duration // nobody loses a seat sooner

	mu    sync.Mutex
	free  int
	has   map[string]int // by client
	taken map[*seat]struct{}
}

// seat is the place of one request.
type seat struct {
	seats   *seats
	client  string
	control *http.ResponseController
	began   time.Time
	waits   atomic.Int32 // for the client's network: reading or sending; 0: for something of ours
	moved   atomic.Int64 // bytes
	lost    atomic.Bool
}

// What a request may wait for.
const (
	reading = 1 + iota
	sending
)

func newSeats(n int, spared time.Duration) *seats {
	return &seats{spared: spared, free: n, has: map[string]int{}, taken: map[*seat]struct{}{}}
}

// take finds a seat for a request of a client. The error is repository.ErrBusy, or
// repository.ErrShare where others may have what this client may not. Clients who are not known may
// have all seats.
func (s *seats) take(client string, control *http.ResponseController) (*seat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.has[client]
	switch {
	case client != "" && has > 0 && has+1 > s.free-1:
		return nil, repository.ErrShare
	case s.free == 0 && (client == "" || !s.makeWay()):
		return nil, repository.ErrBusy
	}
	s.free--
	s.has[client]++
	taken := &seat{seats: s, client: client, control: control, began: time.Now()}
	s.taken[taken] = struct{}{}
	return taken, nil
}

// makeWay frees a seat, if there is one of which its client only has to send or to take.
func (s *seats) makeWay() bool {
	now := time.Now()
	var worst *seat
	for other := range s.taken {
		if other.waits.Load() > 0 && now.Sub(other.began) >= s.spared && (worst == nil || s.worse(other, worst, now)) {
			worst = other
		}
	}
	if worst == nil {
		return false
	}
	worst.lost.Store(true)
	s.leave(worst)
	// Whoever sets a later deadline at the same time sees afterwards that the seat is lost.
	worst.stop(worst.waits.Load())
	return true
}

func (s *seats) worse(a, b *seat, now time.Time) bool {
	if s.has[a.client] != s.has[b.client] {
		return s.has[a.client] > s.has[b.client]
	}
	return a.rate(now) < b.rate(now)
}

// rate is in bytes a second.
func (s *seat) rate(now time.Time) float64 {
	return float64(s.moved.Load()) / max(now.Sub(s.began).Seconds(), 0.001)
}

// leave takes a seat back, once.
func (s *seats) leave(left *seat) {
	if _, has := s.taken[left]; !has {
		return
	}
	delete(s.taken, left)
	s.free++
	if s.has[left.client]--; s.has[left.client] == 0 {
		delete(s.has, left.client)
	}
}

// end gives the seat back. Nobody uses its control from then on.
func (s *seat) end() {
	s.seats.mu.Lock()
	defer s.seats.mu.Unlock()
	s.seats.leave(s)
}

// stop ends what the request waits for.
func (s *seat) stop(waits int32) {
	switch waits {
	case reading:
		s.control.SetReadDeadline(time.Now())
	case sending: // it may be the sentence that says why
		s.control.SetWriteDeadline(time.Now().Add(lingering))
	}
}

// transfer notes that the request reads or sends until the deadline, which is set for the
// connection. done is to be called with the bytes that were moved and how that ended; it returns
// ErrBusy where the seat was lost.
func (s *seat) transfer(waits int32, deadline time.Time) (done func(n int, err error) error) {
	s.waits.Store(waits)
	if waits == reading {
		s.control.SetReadDeadline(deadline)
	} else {
		s.control.SetWriteDeadline(deadline)
	}
	if s.lost.Load() {
		s.stop(waits)
	}
	return func(n int, err error) error {
		s.waits.Store(0)
		s.moved.Add(int64(n))
		if err != nil && s.lost.Load() {
			return repository.ErrBusy
		}
		return err
	}
}
