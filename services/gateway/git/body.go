package git

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"tendril.dev/lib/limit"
)

const (
	// maxKept is the largest request that is kept while it is passed on, so that it can be sent
	// again: git sends larger ones in chunks (http.postBuffer).
	maxKept = 1 << 20
	// allKept is how many bytes of requests are kept at once, of all clients; one has a sixteenth
	// of them at most.
	allKept = 64 << 20
)

// sharers is how many clients share what is kept, and the places of requests that wait, if each
// takes as much as it may.
const sharers = 16

func newKept() *limit.Fair { return limit.NewFair(allKept, allKept/sharers) }

// body is what a client sends. It is handed to one try after the other to pass it on, for as long
// as nothing of it has been passed on that is not kept.
type body struct {
	from  io.ReadCloser
	begin func() // called before the first byte is passed on

	mu     sync.Mutex // guards what follows
	keep   bool
	kept   bytes.Buffer
	passed bool  // some of it was passed on
	failed error // why no more of it comes from the client
}

// try is the body as one try reads it.
type try struct {
	*body
	at     int // of what is kept
	closed chan struct{}
	close  sync.Once
}

// next returns the body for one more try. The one before must have ended.
func (b *body) next() *try { return &try{body: b, closed: make(chan struct{})} }

// whole reports whether a try may begin from the beginning.
func (b *body) whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.passed || b.keep
}

// err is why no more comes from the client, if it is not the end of the request.
func (b *body) err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

// Read reads what is kept, and then from the client.
func (t *try) Read(p []byte) (int, error) {
	t.mu.Lock()
	if t.at < t.kept.Len() {
		n := copy(p, t.kept.Bytes()[t.at:])
		t.at += n
		t.mu.Unlock()
		return n, nil
	}
	first := !t.passed
	t.mu.Unlock()
	if first {
		t.begin()
	}
	n, err := t.from.Read(p)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passed = t.passed || n > 0
	if t.keep {
		t.kept.Write(p[:n])
		t.at += n
	}
	if err != nil && !errors.Is(err, io.EOF) {
		t.failed = err
	}
	return n, err
}

// Close ends the try, not the body.
func (t *try) Close() error {
	t.close.Do(func() { close(t.closed) })
	return nil
}

// ended waits until nobody reads the try any more. A transport may do so for a moment after it has
// given up.
func (t *try) ended(ctx context.Context) error {
	select {
	case <-t.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
