// Package smarthttp serves repositories to git clients over smart HTTP (GRASP-01): fetches by
// git upload-pack, pushes by git receive-pack after an Authority has allowed them. CORS is the
// front door's business.
package smarthttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
)

// Authority decides what is served and which pushes are taken.
type Authority interface {
	// Repository finds the repository of a request. ErrNotFound is answered by 404, ErrElsewhere by
	// 421, any other error by 503: a client must not believe that a repository is gone which only
	// cannot be had at the moment. One below /prs need not be on disk: it is served as an empty
	// one, and made by Push.
	Repository(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, error)

	// Authorize reports whether a push would be allowed now, before its pack is read. It changes
	// nothing. A *Refusal is told to the user's terminal as it is, and so is the reason of an
	// *Unavailable; of any other error the user only learns that there was one.
	Authorize(ctx context.Context, push PushRequest) error

	// Push runs under the identifier's lock: it authorises the commands, calls receive (at most
	// once; it runs receive-pack, and returns nil if every command was applied, else none was),
	// then releases. Its errors are told as those of Authorize. ErrElsewhere: nothing was done; the
	// push is passed on to the worker that holds the identifier now, or tried here again.
	Push(ctx context.Context, push PushRequest, receive func(ctx context.Context) error) error
}

// PushRequest is what a client asks to push.
type PushRequest struct {
	Ref       nostr.RepoRef
	Commands  []Command
	Client    string // the client key from the front door (proto.HeaderClient), empty if it is not known
	PackBytes int64  // length of the pack as it came; 0 for Authorize, and for a push that sends none
}

// Command is one reference that a push changes. Old or New is ZeroID where the reference is created
// or deleted.
type Command struct{ Name, Old, New string }

// Create reports whether the reference is new to the client.
func (c Command) Create() bool { return c.Old == ZeroID }

// Delete reports whether the reference is to go.
func (c Command) Delete() bool { return c.New == ZeroID }

// ZeroID is how git writes that there is no object.
const ZeroID = "0000000000000000000000000000000000000000"

// Refusal is why a push is not taken, in words for the user: "authorisation failed: no state event
// authorises these references".
type Refusal struct{ Reason string }

// Error is the reason.
func (r *Refusal) Error() string { return r.Reason }

// ErrNotFound is a repository that no announcement speaks for.
var ErrNotFound = errors.New("no announcement of it is served or held here")

// ErrElsewhere is a repository that another worker holds. The request is answered by 421
// (Misdirected Request, RFC 9110), which is never for a client: the front door sends it to that
// worker.
var ErrElsewhere = errors.New("another worker holds the repository")

// Unavailable is a repository that there is, or may be, but that cannot be had now.
type Unavailable struct {
	Reason string // for the user: "the repository cannot be written now, try again later"
	Err    error  // for the log; nil: it is none of the operator's business
}

// Error is the reason and what lies behind it.
func (u *Unavailable) Error() string {
	if u.Err == nil {
		return u.Reason
	}
	return u.Reason + ": " + u.Err.Error()
}

// Unwrap returns what lies behind it.
func (u *Unavailable) Unwrap() error { return u.Err }

// Unwritable is the reason where the disk takes nothing.
const Unwritable = "the repository cannot be written now, try again later"

// Options of the handler. The zero value works.
type Options struct {
	// PRs decides for paths below /prs (GRASP-06). nil: there are none.
	PRs Authority

	// MaxPushBytes bounds what a push sends (NGIT_MAX_PUSH_BYTES). Default 4 GiB.
	MaxPushBytes int64

	// MinRate is the lowest rate at which a client must send its request and take its answer, in
	// bytes a second (NGIT_GIT_MIN_RATE). Default 1024.
	MinRate int64

	// Stall is how far a client may fall behind that rate before it is cut off (NGIT_GIT_STALL).
	// Default 30 s.
	Stall time.Duration

	// TransferTime is the longest time for a whole request, and for a whole answer
	// (NGIT_GIT_TRANSFER_TIME). Default 6 h.
	TransferTime time.Duration

	// Patience is how long a request waits for a free git process before it is answered by 503.
	// Default 30 s.
	Patience time.Duration

	// Requests is how many requests may be under way at once, those that are being sent and those
	// whose answer is being read included (NGIT_GIT_REQUESTS). One client may have as many as are
	// still free. Default 1024.
	Requests int

	// SpoolBytes is how much requests on their way in and answers on their way out may take on disk
	// (NGIT_GIT_SPOOL_BYTES). One client may have as much as is still free. Default 16 GiB, at
	// least twice MaxPushBytes.
	SpoolBytes int64

	// KeepAlive is how often a client that has sent its push and waits is told that we still work.
	// Default 5 s.
	KeepAlive time.Duration

	// Holder returns where the worker listens that holds an identifier now, unless it is this one;
	// false: none does. It is asked for pushes that were read in when the repository moved. nil:
	// those are refused.
	Holder func(identifier string) (address string, held bool)

	// HandOver is how long such a push waits until a worker holds the repository
	// (NGIT_GIT_HANDOVER_WAIT). Default 30 s.
	HandOver time.Duration

	// Spared is how long a request is safe from giving its place to others when all places are
	// taken. Default 10 s.
	Spared time.Duration

	Log     *slog.Logger // default: nothing is logged
	Metrics *Metrics     // default: nothing is counted
}

// What clients are told that come when there is no room.
const (
	tooMany      = "too many git requests at once, try again later"
	tooManyOfOne = "too many git requests from your address at once, try again later"
)

// retryAfter is how soon what cannot be had now may be asked for again, in seconds.
const retryAfter = "10"

// handler serves all repositories.
type handler struct {
	authority Authority
	options   Options
	log       *slog.Logger
	metrics   *Metrics
	seats     *seats
	disk      *room // bytes
	passing   *http.Transport
}

// New makes the handler for every path that nostr.ParseRepositoryPath reads.
func New(a Authority, o Options) http.Handler {
	o.MaxPushBytes = cmp.Or(o.MaxPushBytes, 4<<30)
	o.MinRate = cmp.Or(o.MinRate, 1024)
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	o.TransferTime = cmp.Or(o.TransferTime, 6*time.Hour)
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	o.Requests = cmp.Or(o.Requests, 1024)
	o.SpoolBytes = cmp.Or(o.SpoolBytes, 16<<30)
	o.KeepAlive = cmp.Or(o.KeepAlive, 5*time.Second)
	o.HandOver = cmp.Or(o.HandOver, 30*time.Second)
	o.Spared = cmp.Or(o.Spared, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = newMetrics(0)
	}
	return &handler{
		authority: a, options: o, log: o.Log, metrics: o.Metrics,
		seats: newSeats(o.Requests, o.Spared), disk: newRoom(max(o.SpoolBytes, 2*o.MaxPushBytes)),
		passing: newPassing(),
	}
}

// exchange is one request and what it is about.
type exchange struct {
	*handler
	w         http.ResponseWriter
	r         *http.Request
	control   *http.ResponseController
	authority Authority
	seat      *seat
	ref       nostr.RepoRef
	prs       bool // it is below /prs
	repo      *repository.Repo
	shown     *repository.Repo // what is read: repo, or an empty one in its place
	log       *slog.Logger
	whole     bool         // the request has been read to its end
	pushes    bool         // the request is a push of at least one reference
	talk      *negotiation // of a fetch, once it is read
}

// ServeHTTP finds the repository and the service that is asked for.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	header.Set("Expires", "Fri, 01 Jan 1980 00:00:00 GMT")
	header.Set("Pragma", "no-cache")
	header.Set("X-Content-Type-Options", "nosniff")

	x := &exchange{handler: h, w: w, r: r, control: http.NewResponseController(w), authority: h.authority}
	x.enter()
	defer x.leave()
	path, err := nostr.ParseRepositoryPath(r.URL.EscapedPath())
	if err != nil {
		http.Error(w, "not found: "+err.Error(), http.StatusNotFound)
		return
	}
	x.ref = nostr.RepoRef{PubKey: path.PubKey, Identifier: path.Identifier}
	if x.prs = path.PRs; x.prs {
		x.authority = h.options.PRs
	}
	x.log = h.log.With("repository", repository.Place{RepoRef: x.ref, PRs: x.prs}.String())
	if x.seat, err = h.seats.take(x.client(), x.control); err != nil {
		x.fail(err)
		if operation := operationOf(path.Service); operation != "" {
			x.count(operation, time.Now(), err)
		}
		return
	}
	defer x.seat.end()
	if err := x.find(); err != nil {
		x.notFound(err)
		return
	}
	x.serve(path.Service)
}

// client is the key of the client that asks, as the front door knows it. Empty: it is not known.
func (x *exchange) client() string { return x.r.Header.Get(proto.HeaderClient) }

// counted is the repository that bytes are counted for. Of contributors' repositories anybody may
// name any: they would crowd out the others.
func (x *exchange) counted() nostr.RepoRef {
	if x.prs {
		return nostr.RepoRef{}
	}
	return x.ref
}

// operationOf is the label of a service.
func operationOf(service string) string {
	switch service {
	case "info/refs":
		return operationRefs
	case uploadPack:
		return operationFetch
	case receivePack:
		return operationPush
	}
	return ""
}

// find asks for the repository.
func (x *exchange) find() (err error) {
	if x.authority == nil {
		return ErrNotFound
	}
	if x.repo, err = x.authority.Repository(x.r.Context(), x.ref); err != nil {
		return err
	}
	x.shown = x.repo
	switch {
	case x.repo.Exists():
		return nil
	case !x.prs:
		return ErrNotFound
	}
	x.shown, err = x.repo.Store().Empty(x.r.Context())
	return err
}

// notFound answers where there is no repository to serve.
func (x *exchange) notFound(err error) {
	if errors.Is(err, ErrNotFound) {
		http.Error(x.w, "repository not found: "+ErrNotFound.Error(), http.StatusNotFound)
		return
	}
	if errors.Is(err, ErrElsewhere) {
		http.Error(x.w, ErrElsewhere.Error(), http.StatusMisdirectedRequest)
		return
	}
	reason := "this repository cannot be looked up now, try again later"
	log := err
	if known, ok := errors.AsType[*Unavailable](err); ok {
		reason, log = known.Reason, known.Err
	}
	if log != nil && x.r.Context().Err() == nil {
		x.log.Error("a repository could not be opened", "error", log)
	}
	x.w.Header().Set("Retry-After", retryAfter)
	http.Error(x.w, reason, http.StatusServiceUnavailable)
}

func (x *exchange) serve(service string) {
	switch service {
	case "HEAD":
		if x.allowed(http.MethodGet, http.MethodHead) {
			x.serveHead()
		}
	case "info/refs":
		if x.allowed(http.MethodGet, http.MethodHead) {
			x.advertise(x.r.URL.Query().Get("service"))
		}
	case uploadPack:
		if x.allowed(http.MethodPost) && x.speaks(uploadPack) {
			x.fetch()
		}
	case receivePack:
		if x.allowed(http.MethodPost) && x.speaks(receivePack) {
			x.push()
		}
	default:
		http.Error(x.w, "this address is for git: git clone <this address>", http.StatusNotFound)
	}
}

// allowed answers requests of other methods.
func (x *exchange) allowed(methods ...string) bool {
	for _, method := range methods {
		if x.r.Method == method {
			return true
		}
	}
	for _, method := range methods {
		x.w.Header().Add("Allow", method)
	}
	http.Error(x.w, "method not allowed", http.StatusMethodNotAllowed)
	return false
}

// speaks answers requests whose body is not what the service reads.
func (x *exchange) speaks(service string) bool {
	want := "application/x-" + service + "-request"
	if x.r.Header.Get("Content-Type") == want {
		return true
	}
	http.Error(x.w, "the Content-Type is not "+want, http.StatusUnsupportedMediaType)
	return false
}

// result is what became of a git command, as a label and as an answer where none was begun.
func (x *exchange) result(err error) string {
	switch {
	case err == nil:
		return resultOK
	case errors.Is(err, repository.ErrBusy):
		return resultBusy
	case errors.Is(err, repository.ErrShare):
		return resultLimited
	case errors.Is(err, errSlow):
		return resultSlow
	case isTooLarge(err), isMalformed(err):
		return resultRefused
	case x.r.Context().Err() != nil:
		return resultGone
	}
	return resultError
}

// fail answers a request to which nothing was answered yet.
func (x *exchange) fail(err error) {
	switch {
	case errors.Is(err, repository.ErrBusy):
		x.w.Header().Set("Retry-After", retryAfter)
		http.Error(x.w, tooMany, http.StatusServiceUnavailable)
	case errors.Is(err, repository.ErrShare):
		x.w.Header().Set("Retry-After", retryAfter)
		http.Error(x.w, tooManyOfOne, http.StatusTooManyRequests)
	case errors.Is(err, errSlow):
		http.Error(x.w, fmt.Sprintf("the request came too slowly, at less than %d bytes a second", x.options.MinRate), http.StatusRequestTimeout)
	case isTooLarge(err):
		http.Error(x.w, "the request is too large", http.StatusRequestEntityTooLarge)
	case isProtocolError(err):
		http.Error(x.w, "bad request: git cannot read it", http.StatusBadRequest)
	case isMalformed(err):
		http.Error(x.w, fmt.Sprintf("bad request: %v", err), http.StatusBadRequest)
	default:
		http.Error(x.w, "git failed on this server", http.StatusInternalServerError)
	}
}
