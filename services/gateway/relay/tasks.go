package relay

import (
	"context"
	"sync"
)

// tasks is what a connection has under way: messages that are being read, events that wait for
// their verdicts, stored events that are being sent. The zero value has nothing.
type tasks struct {
	mu     sync.Mutex
	n      int
	closed bool          // nothing new begins
	idle   chan struct{} // closed when nothing is under way; nil: nobody waits
}

// begin counts one more. It reports false, and does not count it, if nothing new begins any more.
func (t *tasks) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

// more counts one more on behalf of one that is under way, whose consequence it is.
func (t *tasks) more() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

// done ends one.
func (t *tasks) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// finish returns when nothing is under way, and then nothing new begins. Once last has ended,
// nothing new begins either way. It waits until ctx ends.
func (t *tasks) finish(ctx, last context.Context) {
	for {
		t.mu.Lock()
		t.closed = t.closed || t.n == 0 || last.Err() != nil
		if t.n == 0 {
			t.mu.Unlock()
			return
		}
		if t.idle == nil {
			t.idle = make(chan struct{})
		}
		idle, ended := t.idle, last.Done()
		if t.closed {
			ended = nil
		}
		t.mu.Unlock()
		select {
		case <-idle:
		case <-ended:
		case <-ctx.Done():
			t.mu.Lock()
			t.closed = true
			t.mu.Unlock()
			return
		}
	}
}
