package bus

import (
	"context"
	"sync"
)

// Progress is how far a projection has read its stream: a sequence that only grows. The zero value
// is at 0. It is safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	seq   uint64
	moved chan struct{} // closed when seq moves; nil while nothing waits
}

// Advance moves on to seq; false if that is not ahead.
func (p *Progress) Advance(seq uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq <= p.seq {
		return false
	}
	p.seq = seq
	if p.moved != nil {
		close(p.moved)
		p.moved = nil
	}
	return true
}

// Seq is the sequence reached.
func (p *Progress) Seq() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq
}

// WaitFor waits until seq is reached, or ctx ends.
func (p *Progress) WaitFor(ctx context.Context, seq uint64) error {
	for {
		p.mu.Lock()
		if p.seq >= seq {
			p.mu.Unlock()
			return nil
		}
		if p.moved == nil {
			p.moved = make(chan struct{})
		}
		moved := p.moved
		p.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
