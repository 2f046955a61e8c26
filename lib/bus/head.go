package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// headTimeout bounds one question to JetStream.
const headTimeout = 5 * time.Second

// Head waits until a stream is read up to where it ends now. It asks for the stream's last sequence
// once for all who want to know it at the same time: many requests for repositories that do not
// exist may come at once, and each must know for sure.
type Head struct {
	ask   func(ctx context.Context) (uint64, error)
	reach func(ctx context.Context, seq uint64) error // waits until everything up to a sequence is read

	mu      sync.Mutex
	next    *question // for those who come while another is asked
	running bool
}

// question is asked once; its answer is younger than all who wait for it.
type question struct {
	answered chan struct{}
	seq      uint64
	err      error
}

// Head is the end of a stream for its reader. reach waits until the reader has come to a sequence.
func (b *Bus) Head(stream string, reach func(ctx context.Context, seq uint64) error) *Head {
	return &Head{
		ask:   func(ctx context.Context) (uint64, error) { return b.LastSeq(ctx, stream) },
		reach: func(ctx context.Context, seq uint64) error { return b.CatchUp(ctx, stream, seq, reach) },
	}
}

// Read waits until everything is read that the stream has at some time after the call.
func (h *Head) Read(ctx context.Context) error {
	seq, err := h.Last(ctx)
	if err != nil {
		return err
	}
	return h.reach(ctx, seq)
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

// run asks one question after the other while someone waits.
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

// LastSeq is the stream's last sequence as its leader knows it now.
func (b *Bus) LastSeq(ctx context.Context, stream string) (uint64, error) {
	return lastSeq(ctx, b.JS, stream)
}

func lastSeq(ctx context.Context, js jetstream.JetStream, stream string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	return s.CachedInfo().State.LastSeq, nil
}
