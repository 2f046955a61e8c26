package gateway

import (
	"net/http"
	"net/netip"
	"strings"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/gateway/cors"
	"tendril.dev/services/gateway/git"
	"tendril.dev/services/gateway/info"
	"tendril.dev/services/gateway/relay"
	"tendril.dev/services/gateway/visitors"
	"tendril.dev/services/gateway/web"
)

// door sends every request to who answers it.
type door struct {
	relay          *relay.Relay
	info           http.Handler
	pages          *web.Pages
	git            *git.Proxy
	observation    http.Handler
	trustForwarded bool
}

func (d *door) handler() http.Handler { return cors.Handler(http.HandlerFunc(d.serve)) }

func (d *door) from(r *http.Request) netip.Addr { return visitors.Addr(r, d.trustForwarded) }

// serve looks at the path as it was sent. A ServeMux would tidy it up first, and an identifier may hold what looks untidy.
func (d *door) serve(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.EscapedPath(); path {
	case "", "/":
		d.root(w, r)
	case "/healthz", "/readyz", "/metrics":
		d.observation.ServeHTTP(w, r)
	default:
		at, err := nip34.ParseRepositoryPath(path)
		switch {
		case err == nil && at.Service != "":
			d.git.Serve(w, r, at)
		case !reading(w, r):
		case err == nil:
			d.pages.Repository(w, r, at)
		default:
			d.pages.NotFound(w, r)
		}
	}
}

// root is three things: a relay, its information document, and a page.
func (d *door) root(w http.ResponseWriter, r *http.Request) {
	if upgrade(r) {
		d.relay.Serve(w, r, d.from(r))
		return
	}
	if !reading(w, r) {
		return
	}
	w.Header().Add("Vary", "Accept")
	if info.Wanted(r) {
		d.info.ServeHTTP(w, r)
		return
	}
	d.pages.Home(w, r)
}

func upgrade(r *http.Request) bool {
	return strings.EqualFold(strings.TrimSpace(r.Header.Get("Upgrade")), "websocket")
}

// reading says whether the request only reads; if not, it has been answered.
func reading(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD, OPTIONS")
	http.Error(w, "here is only something to read", http.StatusMethodNotAllowed)
	return false
}
