package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// pace ends a phase of the protocol, a request and its answer, in which the server sends too
// slowly. The answer's first byte may take as long as Limits.Begin, redirects included: a git
// server may think before it sends. From then on every window must bring its bytes.
type pace struct {
	limits Limits
	cut    context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer
	bytes int64 // in this window
	begun bool
	over  bool
}

// errSlow is the cause by which a phase ends that was too slow.
var errSlow = errors.New("the server is too slow")

// paced begins a phase. The context ends with errSlow as its cause if the server is too slow; end
// must be called when the phase is over.
func (l Limits) paced(ctx context.Context) (_ context.Context, p *pace, end func()) {
	ctx, cut := context.WithCancelCause(ctx)
	p = &pace{limits: l, cut: cut}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.MinRate > 0 {
		p.timer = time.AfterFunc(l.Begin, p.look)
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
	p.over = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// look is called when a window ends.
func (p *pace) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.over:
	case !p.begun:
		p.cut(fmt.Errorf("%w: its answer did not begin within %v", errSlow, p.limits.Begin))
	case p.bytes < p.least():
		p.cut(fmt.Errorf("%w: %d bytes within %v, want %d at least", errSlow, p.bytes, p.limits.Window, p.least()))
	default:
		p.bytes = 0
		p.timer.Reset(p.limits.Window)
	}
}

// least is how many bytes a window must bring.
func (p *pace) least() int64 { return int64(float64(p.limits.MinRate) * p.limits.Window.Seconds()) }

// came notes bytes of the answer. The first ones begin the first window.
func (p *pace) came(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += int64(n)
	if !p.over && !p.begun && n > 0 && p.timer != nil && p.timer.Stop() {
		p.begun = true
		p.timer.Reset(p.limits.Window)
	}
}

// of counts what is read of an answer.
func (p *pace) of(body io.Reader) io.Reader { return &pacedReader{from: body, pace: p} }

type pacedReader struct {
	from io.Reader
	pace *pace
}

// Read reads from the source.
func (r *pacedReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.pace.came(n)
	return n, err
}

// until reads what has an end within the answer, and rests when it has been reached.
func (p *pace) until(content io.Reader) io.Reader { return &restingReader{from: content, pace: p} }

type restingReader struct {
	from io.Reader
	pace *pace
}

// Read reads from the source.
func (r *restingReader) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	if err != nil {
		r.pace.rest()
	}
	return n, err
}

// ended returns the error of a phase that we have ended, because the server was too slow or is not
// to be asked now; else err as it is.
func ended(ctx context.Context, err error) error {
	switch why := context.Cause(ctx); {
	case err == nil:
	case errors.Is(why, errSlow):
		return &Error{Cause: CauseTooSlow, Err: why}
	case errors.Is(why, errPutOff):
		return &Error{Cause: CausePutOff, Err: why}
	}
	return err
}
