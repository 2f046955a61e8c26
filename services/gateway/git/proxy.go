// Package git passes git's requests on to the purgatory worker that holds the shard of the
// repository (docs/architecture.md). What the worker may show and take is the worker's business;
// this package only finds it and keeps the request as it is.
package git

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Shards knows which worker serves a shard.
type Shards interface {
	// Holder is the live worker that holds the shard with this name; false: none does at the
	// moment.
	Holder(key string) (proto.Worker, bool)
	// Lives reports whether the worker is live.
	Lives(worker proto.Worker) bool
}

// Everywhere reports whether requests can be passed on for every repository at this moment.
func Everywhere(shards Shards) bool {
	for shard := range proto.Shards {
		if worker, held := shards.Holder(proto.ShardName(shard)); !held || worker.Address == "" {
			return false
		}
	}
	return true
}

// Bans knows which repositories are banned.
type Bans interface {
	// Repository returns the ban of a repository; nil: it has none.
	Repository(nostr.RepoRef) *bans.Ban
}

// Proxy passes requests on. Requests and answers are streamed both ways.
type Proxy struct {
	courier *courier
	reverse *httputil.ReverseProxy
	log     *slog.Logger
}

// New makes a proxy. A request waits so long for a worker.
func New(shards Shards, banned Bans, wait time.Duration, log *slog.Logger) *Proxy {
	c := &courier{shards: shards, bans: banned, transport: newTransport(), patience: wait}
	p := &Proxy{courier: c, log: log}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		ModifyResponse: forgetCORS,
		ErrorHandler:   p.failed,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		FlushInterval:  -1,
		Transport:      c,
	}
	return p
}

// forgetCORS takes the headers away that every answer of the gateway has: twice they would mean
// nothing to a browser.
func forgetCORS(r *http.Response) error {
	for name := range r.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(r.Header, name)
		}
	}
	return nil
}

// Close closes idle connections to workers.
func (p *Proxy) Close() { p.courier.transport.CloseIdleConnections() }

// Serve passes a request of a client on that concerns the repository at.
func (p *Proxy) Serve(w http.ResponseWriter, r *http.Request, at nostr.RepositoryPath, client string) {
	r.Header.Set(proto.HeaderClient, client) // in place of one from outside
	// An answer may begin before the request has ended: git tells how far it is with a push.
	_ = http.NewResponseController(w).EnableFullDuplex()
	p.reverse.ServeHTTP(w, r.WithContext(about(r.Context(), at)))
}

// about notes which repository a request concerns.
func about(ctx context.Context, at nostr.RepositoryPath) context.Context {
	return context.WithValue(ctx, repoKey{}, nostr.RepoRef{PubKey: at.PubKey, Identifier: at.Identifier})
}

// rewrite changes where a request goes and nothing of what it says: path and query stay byte for
// byte. Hop headers are gone already.
func rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "http" // the courier knows where to
	r.Out.Header.Del("Expect")
	r.Out.URL.Path, r.Out.URL.RawPath = r.In.URL.Path, r.In.URL.EscapedPath()
	r.Out.URL.RawQuery, r.Out.URL.ForceQuery = r.In.URL.RawQuery, r.In.URL.ForceQuery
	r.Out.Host = r.In.Host
	// Set again: a Connection header that names it makes it a hop header.
	r.Out.Header.Set(proto.HeaderClient, r.In.Header.Get(proto.HeaderClient))
	if _, ok := r.In.Header["User-Agent"]; !ok {
		r.Out.Header.Set("User-Agent", "")
	}
}

func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	sentence := "the worker that holds this repository cannot be reached"
	ban, isBanned := errors.AsType[*bannedError](err)
	switch {
	case isBanned:
		http.Error(w, ban.Error(), http.StatusForbidden) // git shows it
		return
	case errors.Is(err, context.Canceled):
		return // the client has gone
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(err, errBroken):
		http.Error(w, "the request was sent too slowly", http.StatusRequestTimeout)
		return
	case errors.Is(err, errBroken):
		http.Error(w, "bad request: "+errBroken.Error(), http.StatusBadRequest)
		return
	case errors.Is(err, errNoWorker):
		sentence = "the git data of this repository is moving to another worker"
	}
	p.log.Warn("a git request could not be passed on", "repository", r.Context().Value(repoKey{}), "error", err)
	w.Header().Set("Retry-After", "10") // claims pass on in that time (docs/architecture.md)
	http.Error(w, sentence+"; try again in a few seconds", http.StatusServiceUnavailable)
}
