package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/proto"
)

// The reasons for which a request could not be passed on to a worker.
var (
	errNobody      = errors.New("no worker holds the shard")
	errUnreachable = errors.New("the worker cannot be reached")
	errCrowded     = errors.New("too many requests wait for a worker")
	errDied        = errors.New("the worker has died")
	errBroken      = errors.New("the request ended before it was whole")
)

const (
	// look is how often it is looked whether a shard has a worker.
	look = 20 * time.Millisecond
	// soonest and latest are the pauses before the same worker is asked again.
	soonest = 10 * time.Millisecond
	latest  = 500 * time.Millisecond
	// beat is how often it is looked whether the worker that has a request still lives.
	beat = 500 * time.Millisecond
)

// courier brings requests to the worker that holds their shard, as an http.RoundTripper. Where
// there is none, or it gives the shard away, stops or has died, a request waits for the next one
// and is sent to that, if it can be certain that nothing has been done for it: a worker begins a
// push when it has read some of it, and everything else only reads.
type courier struct {
	shards    Shards
	transport *http.Transport
	patience  time.Duration // how long a request waits for a worker
	places    *limit.Fair   // of those who wait
	kept      *limit.Fair   // bytes
	metrics   *Metrics
}

// passage is which way a request is passed on.
type passage struct {
	shard, client string
	reads         bool // a request with a body that changes nothing
}

type passageKey struct{}

func (p passage) on(ctx context.Context) context.Context {
	return context.WithValue(ctx, passageKey{}, p)
}

func passageOf(ctx context.Context) passage { return ctx.Value(passageKey{}).(passage) }

// RoundTrip implements http.RoundTripper.
func (c *courier) RoundTrip(r *http.Request) (*http.Response, error) {
	to := passageOf(r.Context())
	w := &waiter{courier: c, passage: to}
	defer w.end(waitGone)
	sent, forget := c.body(r, w)
	defer forget()
	for failure := errNobody; ; {
		if worker, held := c.shards.Holder(to.shard); held && worker.Address != "" {
			resp, err := c.send(r, worker, sent)
			if err == nil {
				w.end(waitServed)
				return resp, nil
			}
			if failure = err; !repeatable(r, sent, err) {
				if sent != nil && sent.err() != nil {
					failure = fmt.Errorf("%w: %w", errBroken, failure)
				}
				return nil, failure
			}
			c.metrics.repeated(err)
			w.asked(worker)
		}
		if err := w.wait(r.Context(), failure); err != nil {
			return nil, err
		}
	}
}

// repeatable reports whether a request may be sent again after a try that ended with err.
func repeatable(r *http.Request, b *body, err error) bool {
	switch {
	case r.Context().Err() != nil, b != nil && b.err() != nil:
		return false // it is the client that has failed
	case b == nil:
		return errors.Is(err, errNobody) || r.Method == http.MethodGet || r.Method == http.MethodHead
	}
	return b.whole()
}

// send tries to pass a request on. The error is errNobody if the worker has refused it before it
// did anything, because it does not hold the shard.
func (c *courier) send(r *http.Request, worker proto.Worker, b *body) (*http.Response, error) {
	// The client's context, but without what watches its transport: interim answers are between the
	// worker and us.
	ctx, cancel := context.WithCancelCause(context.Background())
	context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })
	go c.outlive(ctx, worker, cancel)
	out := r.Clone(ctx)
	out.URL.Host = worker.Address
	ended := func() error { return nil }
	if b != nil {
		t := b.next()
		out.Body, ended = t, func() error { return t.ended(r.Context()) }
		if !b.keep {
			// The worker asks for the body when it has found the repository. Until then the request
			// can be sent to another one, however large it is.
			out.Header.Set("Expect", "100-continue")
		}
	}
	resp, err := c.transport.RoundTrip(out)
	if err != nil {
		cancel(nil)
		return nil, errors.Join(fmt.Errorf("%w: %w", errUnreachable, err), ended())
	}
	resp.Body = &answer{resp.Body, cancel}
	if resp.StatusCode == http.StatusMisdirectedRequest {
		resp.Body.Close()
		return nil, errors.Join(errNobody, ended())
	}
	return resp, nil
}

// outlive ends a request when its worker is no longer live, until ctx ends. A worker whose node has
// lost its power closes no connection. One that gave its shards away is live until all it had under
// way is finished.
func (c *courier) outlive(ctx context.Context, worker proto.Worker, end context.CancelCauseFunc) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !c.shards.Lives(worker) {
				end(errDied)
			}
		}
	}
}

// answer is the body of a worker's answer. Its request ends with it.
type answer struct {
	io.ReadCloser
	end context.CancelCauseFunc
}

// Close ends the request.
func (a *answer) Close() error {
	err := a.ReadCloser.Close()
	a.end(nil)
	return err
}

// body prepares the body of a request, nil if it has none. A small one of a request that only reads
// is kept, if there is room.
func (c *courier) body(r *http.Request, w *waiter) (b *body, forget func()) {
	forget = func() {}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, forget
	}
	b = &body{from: r.Body, begin: func() { w.end(waitServed) }}
	if w.reads && r.ContentLength > 0 && r.ContentLength <= maxKept {
		if back, err := c.kept.Try(w.client, r.ContentLength); err == nil {
			b.keep, b.begin, forget = true, func() {}, back
		}
	}
	return b, forget
}

// waiter is a request while it is not with a worker.
type waiter struct {
	*courier
	passage
	last  string // the worker that was asked last
	pause time.Duration

	mu    sync.Mutex // guards what follows
	back  func()     // gives its place back; nil: it has none
	began time.Time
}

// nameOf tells one start of a worker from all others.
func nameOf(w proto.Worker) string { return w.Incarnation + " " + w.Address }

// asked notes that a worker was asked in vain.
func (w *waiter) asked(worker proto.Worker) {
	if name := nameOf(worker); name != w.last {
		w.last, w.pause = name, soonest
		return
	}
	w.pause = min(2*w.pause, latest)
}

// wait returns when it is time to try again: the shard has another worker, or the same one may have
// opened it by now. failure is what to say when the time is over.
func (w *waiter) wait(ctx context.Context, failure error) error {
	began, err := w.enter()
	if err != nil {
		return err
	}
	over := time.NewTimer(time.Until(began.Add(w.patience)))
	defer over.Stop()
	again := time.NewTimer(w.pause)
	defer again.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for rested := false; ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over.C:
			w.end(waitLate)
			return failure
		case <-again.C:
			rested = true
		case <-tick.C:
		}
		worker, held := w.shards.Holder(w.shard)
		if held && worker.Address != "" && (rested || nameOf(worker) != w.last) {
			return nil
		}
	}
}

// enter takes a place among those who wait, unless the request has one. It returns since when.
func (w *waiter) enter() (began time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.back != nil {
		return w.began, nil
	}
	if w.back, err = w.places.Try(w.client, 1); err != nil {
		w.metrics.waits.WithLabelValues(waitCrowded).Observe(0)
		return time.Time{}, fmt.Errorf("%w: %w", errCrowded, err)
	}
	w.metrics.waiting.Inc()
	w.began = time.Now()
	return w.began, nil
}

// end ends the waiting, if there was any. It may be called again.
func (w *waiter) end(result string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.back == nil {
		return
	}
	w.metrics.waiting.Dec()
	w.metrics.waits.WithLabelValues(result).Observe(time.Since(w.began).Seconds())
	w.back()
	w.back = nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		// The workers' addresses come from our own claims and lead to loopback or into the cluster,
		// so the guarded dialer is not asked.
		DialContext:        (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		DisableCompression: true,
		// A worker always asks for the body or answers.
		ExpectContinueTimeout: time.Minute,
		IdleConnTimeout:       time.Minute,
		MaxIdleConnsPerHost:   32,
		// There is no MaxConnsPerHost: each request has a connection to its worker, and requests
		// are bounded by client and by the connections that the front door takes.
	}
}
