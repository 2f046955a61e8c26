package fetch

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// errSlow is the cause by which a request ends whose server sends too slowly.
var errSlow = errors.New("the server is too slow")

// pace ends a request and its answer if the server is too slow. The first byte of the answer may
// take as long as Limits.Begin, redirects included: a git server may think before it sends. From
// then on every window must bring its bytes.
type pace struct {
	limits Limits

	mu    sync.Mutex
	timer *time.Timer
	bytes int64 // in this window
	begun bool
}

// paced begins a request. Its context ends with errSlow as the cause if the server is too slow; end
// must be called when the request is over.
func (l Limits) paced(ctx context.Context) (_ context.Context, p *pace, end func()) {
	ctx, cut := context.WithCancelCause(ctx)
	p = &pace{limits: l}
	if l.MinRate > 0 {
		p.timer = time.AfterFunc(l.Begin, func() { cut(errSlow) })
	}
	return ctx, p, func() {
		p.rest()
		cut(context.Canceled)
	}
}

// rest says that nothing more is expected of the server.
func (p *pace) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// came notes bytes of the answer. The next window begins when this one has brought its bytes.
func (p *pace) came(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += int64(n)
	least := int64(float64(p.limits.MinRate) * p.limits.Window.Seconds())
	if p.timer != nil && n > 0 && (!p.begun || p.bytes >= least) {
		p.begun, p.bytes = true, 0
		p.timer.Reset(p.limits.Window)
	}
}

// readerFunc is a reader that is one function.
type readerFunc func([]byte) (int, error)

// Read calls the function.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// of counts what is read of an answer.
func (p *pace) of(body io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		n, err := body.Read(b)
		p.came(n)
		return n, err
	})
}

// until reads what has an end within the answer, and rests when it has been reached.
func (p *pace) until(content io.Reader) io.Reader {
	return readerFunc(func(b []byte) (int, error) {
		n, err := content.Read(b)
		if err != nil {
			p.rest()
		}
		return n, err
	})
}

// tooSlow is the error of a request that we have ended because the server was too slow; else err as
// it is.
func tooSlow(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSlow) {
		return &Error{Cause: CauseTooSlow, Err: errSlow}
	}
	return err
}
