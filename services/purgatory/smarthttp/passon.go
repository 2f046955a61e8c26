package smarthttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/spool"
)

const (
	// soonest and latest are the pauses between two looks at who holds a repository that moves.
	soonest = 10 * time.Millisecond
	latest  = 500 * time.Millisecond
	// maxOtherReason bounds what is read of another worker's refusal.
	maxOtherReason = 1 << 10
)

// movingReason is what a user is told when no worker has taken the repository in time.
const movingReason = "the repository is moving to another worker; push again in a moment"

// newPassing makes what passes pushes on to other workers. Their addresses come from our own claims
// and lead to loopback or into the cluster, so the guarded dialer is not asked.
func newPassing() *http.Transport {
	return &http.Transport{
		DialContext:        (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		DisableCompression: true,
		DisableKeepAlives:  true,
		// A worker asks for the body when it holds the repository, and answers at once if not.
		ExpectContinueTimeout: time.Minute,
	}
}

// decide lets the Authority decide a push that has been read in. If the repository has moved
// meanwhile, the push is passed on to the worker that holds it now: the client, which has sent
// everything, need not know.
func (p *receiving) decide(ctx context.Context, asked PushRequest, arrived *spool.Spool) (*http.Response, error) {
	inTime := time.NewTimer(p.x.options.HandOver)
	defer inTime.Stop()
	for pause := soonest; ; pause = min(2*pause, latest) {
		err := p.x.authority.Push(ctx, asked, p.receive)
		if !errors.Is(err, ErrElsewhere) {
			return nil, err
		}
		if p.x.options.Holder == nil {
			return nil, &Refusal{Reason: movingReason}
		}
		if address, held := p.x.options.Holder(p.x.ref.Identifier); held {
			answer, err := p.passOn(ctx, address, arrived)
			if answer != nil || err != nil {
				return answer, err
			}
		}
		select {
		case <-time.After(pause):
		case <-inTime.C:
			return nil, &Refusal{Reason: movingReason}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// passOn sends the push to another worker and returns its answer. Neither an answer nor an error:
// that worker has seen nothing of the push, and it may be sent again.
func (p *receiving) passOn(ctx context.Context, address string, arrived *spool.Spool) (*http.Response, error) {
	body := &watched{Reader: io.MultiReader(bytes.NewReader(p.spoken), arrived.Reader())}
	to := &url.URL{Scheme: "http", Host: address, Path: p.x.r.URL.Path, RawPath: p.x.r.URL.EscapedPath()}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), body)
	if err != nil {
		return nil, fmt.Errorf("pass a push on: %w", err)
	}
	r.ContentLength = int64(len(p.spoken)) + arrived.Size()
	r.Header.Set("Content-Type", p.x.r.Header.Get("Content-Type"))
	r.Header.Set("Expect", "100-continue")
	if client := p.x.client(); client != "" {
		r.Header.Set(proto.HeaderClient, client)
	}
	answer, err := p.x.passing.RoundTrip(r)
	switch {
	case err != nil && !body.begun.Load():
		p.x.log.Debug("a push could not be passed on", "worker", address, "error", err)
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("pass a push on to %s: %w", address, err)
	case answer.StatusCode == http.StatusOK:
		return answer, nil
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusMisdirectedRequest {
		return nil, nil
	}
	reason, err := io.ReadAll(io.LimitReader(answer.Body, maxOtherReason))
	if err != nil {
		return nil, fmt.Errorf("pass a push on to %s: %w", address, err)
	}
	return nil, &Refusal{Reason: strings.TrimSpace(string(reason))}
}

// watched is a body that knows whether any of it was read.
type watched struct {
	io.Reader
	begun atomic.Bool
}

// Read reads some of the body.
func (w *watched) Read(p []byte) (int, error) {
	w.begun.Store(true)
	return w.Reader.Read(p)
}
