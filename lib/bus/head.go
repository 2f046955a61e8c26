package bus

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// headTimeout bounds one question for a stream's head: while the bus is away, whoever asks is told
// so.
const headTimeout = 5 * time.Second

// Head waits until a stream is read up to where it ends now. It asks for the stream's last sequence
// for everybody together who wants to know it at the same time: anybody may send requests for
// repositories that are not there, and each of them wants to know for sure.
type Head struct {
	ask     func(ctx context.Context) (uint64, error)
	catchUp func(ctx context.Context, seq uint64) error // waits until everything up to a sequence is read that is still there

	passed atomic.Uint64 // everything up to here is read, though the last messages may be gone by now

	mu      sync.Mutex
	next    *question // for those who come while another is asked
	running bool
}

// question is asked once; its answer is younger than whoever waits for it.
type question struct {
	answered chan struct{}
	seq      uint64
	err      error
}

// Head is the end of a stream for its reader. reach waits until the reader has come to a sequence.
func (b *Bus) Head(stream string, reach func(ctx context.Context, seq uint64) error) *Head {
	return &Head{
		ask:     func(ctx context.Context) (uint64, error) { return b.LastSeq(ctx, stream) },
		catchUp: func(ctx context.Context, seq uint64) error { return b.CatchUp(ctx, stream, seq, reach) },
	}
}

// Read waits until everything is read that the stream has at some time after the call.
func (h *Head) Read(ctx context.Context) error {
	seq, err := h.Last(ctx)
	if err != nil || seq <= h.passed.Load() {
		return err
	}
	if err := h.catchUp(ctx, seq); err != nil {
		return fmt.Errorf("read up to %d: %w", seq, err)
	}
	h.passed.Store(seq)
	return nil
}

// Last returns the stream's last sequence as it is at some time after the call.
func (h *Head) Last(ctx context.Context) (uint64, error) {
	h.mu.Lock()
	if h.next == nil {
		h.next = &question{answered: make(chan struct{})}
	}
	q := h.next
	if !h.running {
		h.running = true
		go h.run()
	}
	h.mu.Unlock()
	select {
	case <-q.answered:
		return q.seq, q.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run asks, one question after the other, until nobody wants to know.
func (h *Head) run() {
	for {
		h.mu.Lock()
		q := h.next
		h.next, h.running = nil, q != nil
		h.mu.Unlock()
		if q == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), headTimeout)
		q.seq, q.err = h.ask(ctx)
		cancel()
		close(q.answered)
	}
}
