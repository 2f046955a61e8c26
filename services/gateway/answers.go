package gateway

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"tendril.dev/lib/limit"
)

// Routes are the parts of the front door, as labels of a metric.
const (
	routeRelay      = "relay"
	routeGit        = "git"
	routeDocument   = "document" // NIP-11
	routeManagement = "management"
	routePage       = "page"
	routeHealth     = "health"
	routeMetrics    = "metrics"
	routeIcon       = "icon"
	routeOther      = "other"
	routeRefused    = "refused"    // a private service was shown no proof
	routeConnection = "connection" // a connection too many, before its request is looked at
)

// answers counts the answers of the front door.
type answers struct {
	requests *prometheus.CounterVec
	met      *limit.Met
}

func newAnswers(r prometheus.Registerer, met *limit.Met) *answers {
	return &answers{met: met, requests: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "ngit_http_requests_total", Help: "Requests at the front door that were answered, by status code.",
	}, []string{"route", "code"})}
}

// count counts an answer, and logs that a client has met a limit: its own, or that of all
// connections.
func (a *answers) count(route, client string, w *counted) {
	code := w.code
	if code == 0 { // nothing was written, or the connection became a WebSocket
		code = http.StatusOK
	}
	a.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
	full := code == http.StatusServiceUnavailable && (route == routeRelay || route == routeConnection)
	if code == http.StatusTooManyRequests || full {
		a.met.Tell(client, route, strconv.Itoa(code)+" "+http.StatusText(code))
	}
}

// counted is the answer to one request. It remembers its status code.
type counted struct {
	http.ResponseWriter
	code int
	// secret: no cache between us and the client may keep the answer.
	secret bool
}

// WriteHeader implements http.ResponseWriter. An informational answer is not the last one.
func (a *counted) WriteHeader(code int) {
	if a.code == 0 && (code >= http.StatusOK || code == http.StatusSwitchingProtocols) {
		a.code = code
		a.keepSecret()
	}
	a.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (a *counted) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.code = http.StatusOK
		a.keepSecret()
	}
	return a.ResponseWriter.Write(p)
}

// keepSecret tells caches so, in place of what the handler has told them.
func (a *counted) keepSecret() {
	if a.secret {
		a.Header().Set("Cache-Control", "no-store")
		a.Header().Add("Vary", "Authorization")
	}
}

// Unwrap lets http.ResponseController, and who takes the connection over, reach the server's own.
func (a *counted) Unwrap() http.ResponseWriter { return a.ResponseWriter }
