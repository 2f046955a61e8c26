// Package git passes git's requests on to the purgatory worker that holds the shard of the repository (design.md, A push). What the
// worker may show and take is the worker's business; this package only finds it and keeps the request as it is.
package git

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"time"

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
	address func(*http.Request) netip.Addr
	reverse *httputil.ReverseProxy
	log     *slog.Logger
}

type toKey struct{}

// New makes a proxy. address tells who a request comes from.
func New(shards Shards, address func(*http.Request) netip.Addr, log *slog.Logger) *Proxy {
	p := &Proxy{shards: shards, address: address, log: log}
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
		},
	}
	return p
}

// Close closes idle connections to workers.
func (p *Proxy) Close() { p.reverse.Transport.(*http.Transport).CloseIdleConnections() }

// Serve passes a request on that concerns the repository at.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, at nip34.RepositoryPath) {
	shard := proto.ShardName(proto.ShardOf(at.Identifier))
	address := addressOf(p.shards, shard)
	if address == "" {
		p.log.Warn("no worker serves a shard", "shard", shard)
		unavailable(w, "the git data of this repository is moving to another worker; try again in a few seconds")
		return
	}
	// An answer may begin before the request has ended. Where that cannot be had (HTTP/2 has it anyway), it comes afterwards.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), toKey{}, address)))
}

// rewrite changes where a request goes and nothing of what it says: path and query stay byte for byte. Hop headers are gone already.
func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "http"
	r.Out.URL.Host = r.In.Context().Value(toKey{}).(string)
	r.Out.URL.Path, r.Out.URL.RawPath = r.In.URL.Path, r.In.URL.EscapedPath()
	r.Out.URL.RawQuery, r.Out.URL.ForceQuery = r.In.URL.RawQuery, r.In.URL.ForceQuery
	r.Out.Host = r.In.Host
	if from := p.address(r.In); from.IsValid() {
		r.Out.Header.Set("X-Forwarded-For", from.String())
	}
	if _, ok := r.In.Header["User-Agent"]; !ok {
		r.Out.Header.Set("User-Agent", "")
	}
}

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) {
		return // the client has gone
	}
	p.log.Warn("a git request could not be passed on", "worker", r.Context().Value(toKey{}), "error", err)
	unavailable(w, "the worker that holds this repository cannot be reached; try again in a few seconds")
}

func unavailable(w http.ResponseWriter, sentence string) {
	w.Header().Set("Retry-After", retryAfter)
	http.Error(w, sentence, http.StatusServiceUnavailable)
}
