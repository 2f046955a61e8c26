package gateway

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/git"
	"tendril.dev/services/gateway/info"
	"tendril.dev/services/gateway/relay"
	"tendril.dev/services/gateway/slow"
	"tendril.dev/services/gateway/web"
)

// door sends every request to who answers it.
type door struct {
	relay       *relay.Relay
	info        http.Handler
	icon        http.Handler
	pages       *web.Pages
	git         *git.Proxy
	limits      *git.Limits
	observation http.Handler
	clients     proxies
	stall       time.Duration // for clients that send or take nothing
	stopping    atomic.Bool   // connections end with the request that is under way or comes next
}

// handler answers all requests. WebSockets are the relay's own business from their first byte on.
func (d *door) handler() http.Handler {
	others := slow.Handler(http.HandlerFunc(d.serve), d.stall)
	return slow.Begin(cors(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del(proto.HeaderClient) // nobody outside says who a client is
		if d.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		if upgrade(r) && atRoot(r) {
			d.relay.Serve(w, r, d.client(r))
			return
		}
		others.ServeHTTP(w, r)
	})), d.stall)
}

// client is the key of the client that a request comes from.
func (d *door) client(r *http.Request) string { return limit.Address(d.clients.client(r)) }

func atRoot(r *http.Request) bool {
	path := r.URL.EscapedPath()
	return path == "" || path == "/"
}

// serve looks at the path as it was sent. A ServeMux would tidy it up first, and an identifier may
// hold what looks untidy.
func (d *door) serve(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.EscapedPath(); path {
	case "", "/":
		d.root(w, r)
	case "/healthz", "/readyz":
		d.observation.ServeHTTP(w, r)
	case "/metrics":
		if d.limits.Page(w, d.client(r)) {
			d.observation.ServeHTTP(w, r)
		}
	case info.IconPath, "/favicon.ico":
		if reading(w, r) {
			d.icon.ServeHTTP(w, r)
		}
	default:
		at, err := nostr.ParseRepositoryPath(path)
		switch {
		case err == nil && at.Service != "":
			d.git.Serve(w, r, at, d.client(r))
		case !reading(w, r):
		case !d.limits.Page(w, d.client(r)):
		case err == nil:
			d.pages.Repository(w, r, at, d.client(r))
		case askedByGit(r):
			http.Error(w, "repository not found: "+err.Error()+"; repositories are at /<npub of the owner>/<identifier>.git", http.StatusNotFound)
		default:
			d.pages.NotFound(w, r)
		}
	}
}

// root is two things besides the relay: its information document, and a page.
func (d *door) root(w http.ResponseWriter, r *http.Request) {
	if !reading(w, r) {
		return
	}
	w.Header().Add("Vary", "Accept")
	if info.Wanted(r) {
		d.info.ServeHTTP(w, r)
		return
	}
	if d.limits.Page(w, d.client(r)) {
		d.pages.Home(w, r)
	}
}

// askedByGit reports whether a git client begins a clone, fetch or push. It shows what it is told
// only if that is plain text.
func askedByGit(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "/info/refs") && strings.HasPrefix(r.URL.Query().Get("service"), "git-")
}

func upgrade(r *http.Request) bool {
	return strings.EqualFold(strings.TrimSpace(r.Header.Get("Upgrade")), "websocket")
}

// reading reports whether the request only reads; if not, it has been answered.
func reading(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD, OPTIONS")
	http.Error(w, "method not allowed: this address can only be read", http.StatusMethodNotAllowed)
	return false
}
