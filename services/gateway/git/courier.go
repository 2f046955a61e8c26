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

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// The reasons for which a request could not be passed on to a worker.
var (
	errNoWorker    = errors.New("no worker holds the shard")
	errUnreachable = errors.New("the worker cannot be reached")
	errDied        = errors.New("the worker has died")
	errBroken      = errors.New("the request ended before it was whole")
)

// bannedError: an operator has banned the repository.
type bannedError struct{ *bans.Ban }

func (e *bannedError) Error() string { return e.Message() }

const (
	// retryPause is the pause before it is tried again to pass a request on.
	retryPause = 50 * time.Millisecond
	// watchEvery is how often it is looked whether the worker that has a request still lives, and
	// whether the repository is banned now.
	watchEvery = 500 * time.Millisecond
)

// courier brings requests to the worker that holds their shard, as an http.RoundTripper. Where
// there is none, or it gives the shard away, stops or has died, a request waits for the next one
// and is sent to that, if it is certain that nothing has been done for it: a worker begins with a
// request that has a body when it has read some of that, and others only read.
type courier struct {
	shards    Shards
	bans      Bans
	transport *http.Transport
	patience  time.Duration // how long a request waits for a worker
}

// repoKey is the key of the repository in the context of a request.
type repoKey struct{}

// RoundTrip implements http.RoundTripper.
func (c *courier) RoundTrip(r *http.Request) (*http.Response, error) {
	ref := r.Context().Value(repoKey{}).(nostr.RepoRef)
	shard := proto.ShardName(proto.ShardOf(ref.Identifier))
	end := time.Now().Add(c.patience)
	for failure := errNoWorker; ; {
		if err := c.banned(ref); err != nil {
			return nil, err
		}
		if worker, held := c.shards.Holder(shard); held && worker.Address != "" {
			resp, repeatable, err := c.send(r, worker)
			if err == nil || !repeatable || r.Context().Err() != nil {
				return resp, err
			}
			failure = err
		}
		if err := backoff.Sleep(r.Context(), retryPause); err != nil {
			return nil, err
		}
		if time.Now().After(end) {
			return nil, failure
		}
	}
}

// send tries to pass a request on. The error is errNoWorker if the worker has refused it before it
// did anything, because it does not hold the shard.
func (c *courier) send(r *http.Request, worker proto.Worker) (resp *http.Response, repeatable bool, err error) {
	// The client's context, but without what watches its transport: interim answers are between the
	// worker and us.
	ctx, cancel := context.WithCancelCause(context.Background())
	context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })
	go c.watchWorker(ctx, worker, r.Context().Value(repoKey{}).(nostr.RepoRef), cancel)
	out := r.Clone(ctx)
	out.URL.Host = worker.Address
	hasBody := r.Body != nil && r.Body != http.NoBody
	untouched := func() bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }
	if hasBody {
		t := &try{body: r.Body}
		out.Body, untouched = t, t.end
		// The worker asks for the body when it has found the repository. Until then the request can
		// be sent to another one.
		out.Header.Set("Expect", "100-continue")
	}
	resp, err = c.transport.RoundTrip(out)
	if ban := context.Cause(ctx); err != nil && errors.As(ban, new(*bannedError)) {
		return nil, false, ban
	}
	if err != nil {
		cancel(nil)
		return nil, untouched(), fmt.Errorf("%w: %w", errUnreachable, err)
	}
	resp.Body = &answer{resp.Body, cancel}
	if resp.StatusCode == http.StatusMisdirectedRequest {
		resp.Body.Close()
		return nil, untouched() || !hasBody, errNoWorker
	}
	return resp, false, nil
}

// banned is the error for a repository that is banned.
func (c *courier) banned(ref nostr.RepoRef) error {
	if ban := c.bans.Repository(ref); ban != nil {
		return &bannedError{ban}
	}
	return nil
}

// watchWorker ends a request when its worker is no longer live, or its repository is banned, until
// ctx ends. A worker whose node has lost its power closes no connection. One that gave its shards
// away is live until all it had under way is finished.
func (c *courier) watchWorker(ctx context.Context, worker proto.Worker, ref nostr.RepoRef,
	end context.CancelCauseFunc) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !c.shards.Lives(worker) {
				end(errDied)
			}
			if err := c.banned(ref); err != nil {
				end(err)
			}
		}
	}
}

// try is the body of a request as one try to pass it on reads it.
type try struct {
	body io.Reader

	mu           sync.Mutex // guards what follows
	begun, ended bool
}

// Read reads from the client. A transport may do so for a moment after it has given up: then it
// gets nothing, so that nothing is missing for the next try.
func (t *try) Read(p []byte) (int, error) {
	t.mu.Lock()
	ended := t.ended
	t.begun = t.begun || !ended
	t.mu.Unlock()
	if ended {
		return 0, errBroken
	}
	n, err := t.body.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", errBroken, err)
	}
	return n, err
}

// Close does nothing: the body lasts longer than a try.
func (t *try) Close() error { return nil }

// end ends the try, and reports whether nothing was read.
func (t *try) end() (untouched bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return !t.begun
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
