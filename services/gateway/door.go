package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/git"
	"tendril.dev/services/gateway/guard"
	"tendril.dev/services/gateway/pages"
	"tendril.dev/services/gateway/relay"
)

// door sends every request to what answers it.
type door struct {
	guard       *guard.Guard
	relay       *relay.Relay // asks its clients itself who they are
	open        openPages
	content     guard.Locked[content]
	health      http.Handler
	git         interface{ Close() } // what of it is no content
	clients     proxies
	behindProxy sync.Once     // warns of a proxy that is not trusted
	base        string        // path below which everything lies; "" is the root of the domain
	url         string        // http URL of the service
	stall       time.Duration // for clients that send nothing
	manageTime  time.Duration // for a whole request of NIP-86
	bus         *nats.Conn
	bans        *bans.Set
	log         *slog.Logger
	stopping    atomic.Bool // connections end with the request that is under way or comes next

	answers *answers
	fetches allowance   // requests for git data
	shown   allowance   // pages and metrics: a crawler does not use up what clones need
	atOnce  *limit.Fair // of git
}

// openPages are what anyone may see, also of a private service. They say nothing of what is here.
type openPages interface {
	Document(w http.ResponseWriter)
	Front(w http.ResponseWriter, r *http.Request)
	OwnName(w http.ResponseWriter, r *http.Request)
	Icon(w http.ResponseWriter, r *http.Request)
	Robots(w http.ResponseWriter)
}

// content is what is here: of a private service members alone see it.
type content struct {
	pages       *pages.Pages
	git         *git.Proxy
	observation http.Handler
}

// allowance is how many requests of one kind a client may make in a minute.
type allowance struct {
	*limit.Rates
	perMinute int
	what      string
}

func newAllowance(perMinute int, what string) allowance {
	return allowance{limit.NewRates(perMinute, time.Minute), perMinute, what}
}

// ServeHTTP answers all requests. Every answer has the headers that open it to web pages of any
// origin (GRASP-01).
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers",
		"Content-Type, Accept, Accept-Encoding, Authorization, Content-Encoding, Git-Protocol, Range, X-Requested-With")
	h.Set("Access-Control-Expose-Headers", "WWW-Authenticate")
	r.Header.Del(proto.HeaderClient) // only the gateway says who a client is
	refused, _ := r.Context().Value(refusalKey{}).(error)
	// Only git's bodies are read: what else is still to come is no next request.
	if refused != nil || d.stopping.Load() || r.ContentLength != 0 {
		h.Set("Connection", "close")
	}
	defer takeBody(w, r, d.stall).end(w)
	d.warnOfProxy(r)
	client, route := limit.Address(d.clients.client(r)), routeConnection
	answer := &counted{ResponseWriter: w, secret: d.guard.Circle.IsPrivate()}
	defer func() { d.answers.count(route, client, answer) }()
	if refused != nil {
		relay.TurnAway(answer, refused)
		return
	}
	if r.Method == http.MethodOptions {
		route = routeOther
		answer.WriteHeader(http.StatusNoContent)
		return
	}
	route = d.serve(answer, r, client)
}

// warnOfProxy warns once of a proxy on this machine that NGIT_TRUSTED_PROXIES does not name: all of
// its clients would share one allowance.
func (d *door) warnOfProxy(r *http.Request) {
	peer := peerOf(r.RemoteAddr)
	if !peer.IsLoopback() || r.Header.Get("X-Forwarded-For") == "" || d.clients.trusts(peer) {
		return
	}
	d.behindProxy.Do(func() {
		d.log.Warn("a proxy on this machine passes requests on, and all its clients share one allowance: "+
			"set NGIT_TRUSTED_PROXIES to its address", "proxy", peer)
	})
}

// below is a request as it would be if everything lay at the root of the domain. It reports false for
// one that lies outside of the base path.
func (d *door) below(r *http.Request) (*http.Request, bool) {
	if d.base == "" {
		return r, true
	}
	path, isBelow := strings.CutPrefix(r.URL.Path, d.base)
	raw, isRawBelow := strings.CutPrefix(r.URL.RawPath, d.base)
	if !isBelow || path != "" && path[0] != '/' || r.URL.RawPath != "" && !isRawBelow {
		return nil, false
	}
	short := r.WithContext(r.Context())
	short.URL = new(url.URL)
	*short.URL = *r.URL
	short.URL.Path, short.URL.RawPath = path, raw
	return short, true
}

// serve answers a request, and returns which part of the front door did. It looks at the path as it
// was sent: a ServeMux would tidy it up first, and an identifier may hold what looks untidy.
func (d *door) serve(w http.ResponseWriter, r *http.Request, client string) (route string) {
	r, ours := d.below(r)
	if !ours {
		http.Error(w, "not found: this service lies at "+d.url, http.StatusNotFound)
		return routeOther
	}
	path := r.URL.EscapedPath()
	atRoot := path == "" || path == "/"
	if atRoot && isPostOf(r, managementType) { // which has a proof of its own
		d.manage(w, r, client)
		return routeManagement
	}
	if err := d.banned(client); err != nil { // but for the operator, who may be behind the same address
		http.Error(w, err.Error(), http.StatusForbidden)
		return routeConnection
	}
	if atRoot && strings.EqualFold(strings.TrimSpace(r.Header.Get("Upgrade")), "websocket") {
		d.relay.Serve(w, r, client)
		return routeRelay
	}
	if route, answered := d.serveOpen(w, r, path, atRoot, client); answered {
		return route
	}
	proof, ok := d.guard.Check(r)
	if !ok {
		d.guard.Refuse(w, r)
		return routeRefused
	}
	return d.serveContent(w, r, d.content.Open(proof), path, client)
}

func isPostOf(r *http.Request, contentType string) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return r.Method == http.MethodPost && strings.TrimSpace(kind) == contentType
}

func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// serveOpen answers what anyone may ask, also of a private service.
func (d *door) serveOpen(w http.ResponseWriter, r *http.Request, path string, atRoot bool,
	client string) (route string, answered bool) {
	if !isRead(r) {
		return "", false
	}
	switch path {
	case "/healthz", "/readyz":
		d.health.ServeHTTP(w, r)
		return routeHealth, true
	case pages.IconPath, "/favicon.ico":
		d.open.Icon(w, r)
		return routeIcon, true
	case pages.RobotsPath:
		d.open.Robots(w)
		return routePage, true
	}
	if atRoot && pages.WantsDocument(r) {
		d.open.Document(w)
		return routeDocument, true
	}
	if !atRoot && path != pages.NamesPath {
		return "", false
	}
	if !d.shown.admits(w, client) {
		return routePage, true
	}
	if atRoot {
		// A member sees what is here.
		if proof, ok := d.guard.Check(r); ok {
			d.content.Open(proof).pages.Home(w, r, client)
		} else {
			d.open.Front(w, r)
		}
		return routePage, true
	}
	// The names of repositories are for everyone or for no one: a request for them has no proof.
	if proof, public := d.guard.Public(); public {
		d.content.Open(proof).pages.Names(w, r, client)
	} else {
		d.open.OwnName(w, r)
	}
	return routePage, true
}

// serveContent answers who may see what is here.
func (d *door) serveContent(w http.ResponseWriter, r *http.Request, here content, path, client string) (route string) {
	if answerAddress(w, r, d.url) {
		return routeOther
	}
	// On a private service no name answers: a proof is for an address.
	if _, public := d.guard.Public(); public && isRead(r) {
		if to := here.pages.Named(r.URL.Path); to != "" {
			http.Redirect(w, r, to+strings.TrimSuffix("?"+r.URL.RawQuery, "?"), http.StatusFound)
			return routePage
		}
	}
	at, err := nostr.ParseRepositoryPath(path)
	if err == nil && at.Service != "" {
		d.passToGit(w, r, here.git, at, client)
		return routeGit
	}
	if !isRead(r) {
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		http.Error(w, "method not allowed: this address can only be read", http.StatusMethodNotAllowed)
		return routeOther
	}
	switch {
	case !d.shown.admits(w, client):
	case path == pages.FeedPath:
		here.pages.Feed(w, r, client)
	case path == "/metrics":
		here.observation.ServeHTTP(w, r)
		return routeMetrics
	case err == nil:
		here.pages.Repository(w, r, at, client)
	case strings.HasSuffix(r.URL.Path, "/info/refs") && strings.HasPrefix(r.URL.Query().Get("service"), "git-"):
		// A git client shows what it is told only if that is plain text.
		http.Error(w, "repository not found: "+err.Error()+"; repositories are at /<npub of the owner>/<identifier>.git",
			http.StatusNotFound)
		return routeGit
	default:
		here.pages.Other(w, r, client)
	}
	return routePage
}

// banned returns why an operator wants no requests from a client; nil: they are answered.
func (d *door) banned(client string) error {
	ban := d.bans.Find(bans.Subject{Outside: bans.Outside{Address: client}})
	if ban == nil {
		return nil
	}
	return errors.New(ban.Message())
}

// passToGit passes a request on to the worker that holds the repository.
func (d *door) passToGit(w http.ResponseWriter, r *http.Request, proxy *git.Proxy, at nostr.RepositoryPath,
	client string) {
	if !d.fetches.admits(w, client) {
		return
	}
	leave, err := d.atOnce.Try(client, 1)
	if err != nil {
		tooMany(w, "too many git requests at once from your address", 5*time.Second)
		return
	}
	defer leave()
	if !d.stopping.Load() && at.Service != "git-receive-pack" { // a push may be refused half-way
		w.Header().Del("Connection")
	}
	proxy.Serve(w, r, at, client)
}

const (
	// managementType is the content type of requests by which an operator's client manages the relay
	// (NIP-86), and maxManagement their largest size in bytes.
	managementType = "application/nostr+json+rpc"
	maxManagement  = 64 << 10
)

// manage passes a request of NIP-86 on to ingest, which checks who sends it.
func (d *door) manage(w http.ResponseWriter, r *http.Request, client string) {
	if !d.shown.admits(w, client) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.manageTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { r.Body.Close() })()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxManagement))
	if err != nil {
		http.Error(w, "the request is too large, or not whole in time", http.StatusBadRequest)
		return
	}
	var answer proto.ManageAnswer
	question, err := json.Marshal(proto.ManageRequest{Authorization: r.Header.Get("Authorization"), Body: body})
	if err == nil {
		var m *nats.Msg
		if m, err = d.bus.RequestWithContext(ctx, proto.SubjectManage, question); err == nil {
			err = json.Unmarshal(m.Data, &answer)
		}
	}
	if err != nil {
		d.log.Warn("a request to manage the relay was not answered", "error", err)
		http.Error(w, "no answer in time; try again later", http.StatusServiceUnavailable)
		return
	}
	if answer.Status == http.StatusUnauthorized && d.guard.Circle.IsPrivate() {
		d.guard.Refuse(w, r)
		return
	}
	w.Header().Set("Content-Type", managementType)
	w.WriteHeader(answer.Status)
	w.Write(answer.Body)
}

// admits counts a request of a client. If it is one too many, it answers and returns false.
func (a allowance) admits(w http.ResponseWriter, client string) bool {
	ok, wait := a.Allow(client)
	if !ok {
		tooMany(w, fmt.Sprintf("at most %d requests for %s a minute from one address", a.perMinute, a.what), wait)
	}
	return ok
}

// tooMany refuses a request. Git shows the text of such an answer as lines that begin with
// "remote:".
func tooMany(w http.ResponseWriter, sentence string, wait time.Duration) {
	seconds := int(math.Ceil(max(wait, time.Second).Seconds()))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	http.Error(w, fmt.Sprintf("rate-limited: %s; try again in %s", sentence, time.Duration(seconds)*time.Second),
		http.StatusTooManyRequests)
}

// errAnswered is what a body gives that is read after the answer to its request has ended.
var errAnswered = errors.New("the request has been answered")

// body is that of a request. The client has a time for the next bytes of it.
type body struct {
	io.ReadCloser
	control       *http.ResponseController
	stall         time.Duration
	whole, closed atomic.Bool
}

// takeBody puts a body in the place of that of a request.
func takeBody(w http.ResponseWriter, r *http.Request, stall time.Duration) *body {
	b := &body{ReadCloser: r.Body, control: http.NewResponseController(w), stall: stall}
	b.whole.Store(r.ContentLength == 0)
	r.Body = b
	return b
}

// Read reads some of the body.
func (b *body) Read(p []byte) (int, error) {
	b.control.SetReadDeadline(time.Now().Add(b.stall))
	if b.closed.Load() { // after the deadline, as in Close
		return 0, errAnswered
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.whole.Store(true)
		// From now on the server watches for the end of the connection.
		b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Close ends the body, and a Read that waits for a client that does not send.
func (b *body) Close() error {
	if !b.closed.Swap(true) && !b.whole.Load() {
		b.control.SetReadDeadline(time.Now())
	}
	return b.ReadCloser.Close()
}

// end ends the body after the answer. If the client is still sending, the connection is closed in
// two steps, first our direction, and half a second later the client's. A client that sends to a
// connection that is closed at once gets a reset, which takes the answer away from it before it has
// read it. The server does so where a body is larger than http.MaxBytesReader allows, so it is told
// of one.
func (b *body) end(w http.ResponseWriter) {
	b.Close()
	if !b.whole.Load() {
		_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
	}
}
