// Package git passes git's requests on to the purgatory worker that holds the shard of the repository (design.md, A push). What the
// worker may show and take is the worker's business; this package only finds it and keeps the request as it is.
package git

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/cors"
)

// Shards knows which worker serves a shard.
type Shards interface {
	// Holder is the live worker that holds the shard with this name; false: none does at the moment.
	Holder(key string) (proto.Worker, bool)
}

// addressOf is where requests for a shard are passed on to; empty: nowhere at the moment.
func addressOf(shards Shards, shard string) string {
	worker, held := shards.Holder(shard)
	if !held {
		return ""
	}
	return worker.Address
}

// Everywhere reports whether requests can be passed on for every repository at this moment.
func Everywhere(shards Shards) bool {
	for shard := range proto.Shards {
		if addressOf(shards, proto.ShardName(shard)) == "" {
			return false
		}
	}
	return true
}

// retryAfter is how soon a shard without a worker has one again, in seconds: claims pass on within 10 s (design.md, Failure and scale).
const retryAfter = "10"

// Proxy passes requests on. Requests and answers are streamed both ways.
type Proxy struct {
	shards  Shards
	limits  *Limits
	reverse *httputil.ReverseProxy
	log     *slog.Logger
}

// passage is how a request is passed on.
type passage struct{ worker, client string }

type passageKey struct{}

func passageOf(r *http.Request) passage { return r.Context().Value(passageKey{}).(passage) }

// New makes a proxy.
func New(shards Shards, limits *Limits, log *slog.Logger) *Proxy {
	p := &Proxy{shards: shards, limits: limits, log: log}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		ModifyResponse: func(r *http.Response) error { cors.Forget(r.Header); return nil },
		ErrorHandler:   p.failed,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		FlushInterval:  -1,
		// The workers' addresses come from our own claims and lead to loopback or into the cluster, so the guarded dialer is not asked.
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			DisableCompression:    true,
			ExpectContinueTimeout: 5 * time.Second,
			IdleConnTimeout:       time.Minute,
			MaxIdleConnsPerHost:   32,
			// There is no MaxConnsPerHost: each request has a connection to its worker, and
			// requests are bounded by client and by the connections that the front door takes.
		},
	}
	return p
}

// Close closes idle connections to workers.
func (p *Proxy) Close() { p.reverse.Transport.(*http.Transport).CloseIdleConnections() }

// Serve passes a request of a client on that concerns the repository at, or refuses it.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, at nip34.RepositoryPath, client string) {
	leave, refused := p.limits.admit(client, pushes(r, at))
	if refused != nil {
		refused.answer(w)
		return
	}
	defer leave()
	if at.Service == receivePack {
		r.Body = &metered{r.Body, func(n int) bool { return p.limits.pushed.Spend(client, n) }}
	}
	shard := proto.ShardName(proto.ShardOf(at.Identifier))
	address := addressOf(p.shards, shard)
	if address == "" {
		p.log.Warn("no worker serves a shard", "shard", shard)
		unavailable(w, "the git data of this repository is moving to another worker; try again in a few seconds")
		return
	}
	// An answer may begin before the request has ended. Where that cannot be had (HTTP/2 has it anyway), it comes afterwards.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), passageKey{}, passage{address, client})))
}

const receivePack = "git-receive-pack"

// pushes reports whether a request is part of a push.
func pushes(r *http.Request, at nip34.RepositoryPath) bool {
	return at.Service == receivePack || at.Service == "info/refs" && r.URL.Query().Get("service") == receivePack
}

// askTime is the longest time for asking a worker whether a repository is here.
const askTime = 5 * time.Second

// Hosts asks the worker that holds the shard whether a repository is here, served or held. An
// error: it cannot be told now.
func (p *Proxy) Hosts(ctx context.Context, at nip34.RepositoryPath, client string) (bool, error) {
	address := addressOf(p.shards, proto.ShardName(proto.ShardOf(at.Identifier)))
	if address == "" {
		return false, errors.New("no worker serves the shard")
	}
	npub, err := nip19.EncodePublicKey(at.PubKey)
	if err != nil {
		return false, fmt.Errorf("encode the owner's key: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	url := "http://" + address + nip34.RepositoryURLPath(npub, at.Identifier) + "/HEAD"
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return false, fmt.Errorf("ask a worker for a repository: %w", err)
	}
	r.Header.Set(proto.HeaderClient, client)
	resp, err := p.reverse.Transport.RoundTrip(r)
	if err != nil {
		return false, fmt.Errorf("ask a worker for a repository: %w", err)
	}
	resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusNotFound:
		return false, nil
	}
	return false, fmt.Errorf("ask a worker for a repository: it answered %s", resp.Status)
}

// rewrite changes where a request goes and nothing of what it says: path and query stay byte for byte. Hop headers are gone already.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "http"
	to := passageOf(r.In)
	r.Out.URL.Host = to.worker
	r.Out.URL.Path, r.Out.URL.RawPath = r.In.URL.Path, r.In.URL.EscapedPath()
	r.Out.URL.RawQuery, r.Out.URL.ForceQuery = r.In.URL.RawQuery, r.In.URL.ForceQuery
	r.Out.Host = r.In.Host
	r.Out.Header.Set(proto.HeaderClient, to.client) // in place of one from outside
	if _, ok := r.In.Header["User-Agent"]; !ok {
		r.Out.Header.Set("User-Agent", "")
	}
}

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	to := passageOf(r)
	switch {
	case errors.Is(err, errSpent):
		_, wait := p.limits.pushed.Left(to.client)
		p.limits.tooMuch(wait).answer(w)
		return
	case errors.Is(err, context.Canceled):
		return // the client has gone
	case errors.Is(err, os.ErrDeadlineExceeded):
		http.Error(w, "the request was sent too slowly", http.StatusRequestTimeout)
		return
	}
	p.log.Warn("a git request could not be passed on", "worker", to.worker, "error", err)
	unavailable(w, "the worker that holds this repository cannot be reached; try again in a few seconds")
}

func unavailable(w http.ResponseWriter, sentence string) {
	w.Header().Set("Retry-After", retryAfter)
	http.Error(w, sentence, http.StatusServiceUnavailable)
}
