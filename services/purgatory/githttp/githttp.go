// Package githttp serves repositories to git clients over smart HTTP (GRASP-01): fetches by
// git upload-pack, pushes by git receive-pack after an Authority has allowed them. CORS and the
// number of requests are the front door's business.
package githttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// Authority decides what is served and which pushes are taken.
type Authority interface {
	// Repository finds the repository of a request. ErrNotFound is answered by 404,
	// repository.ErrElsewhere by 421, any other error by 503: a client must not believe that a
	// repository is gone which only cannot be read at the moment. One below /prs need not be on
	// disk: it is served as an empty one, and made by Push.
	Repository(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, error)

	// Authorize reports whether any of a push would be allowed now. It is asked before its pack is
	// read, and from time to time while that comes, so that what allows the push does not expire
	// meanwhile. What Refuse and Unavailable say is told to the user's terminal; of any other error
	// the user only learns that there was one.
	Authorize(ctx context.Context, push PushRequest) error

	// Push runs under the repository's lock: it authorises the commands, calls receive at most once
	// for those that are left to do, then releases. Commands that are not among the refused are done.
	// On an error none is. Its errors are told as those of Authorize. repository.ErrElsewhere: nothing
	// was done; the push is passed on to the worker that holds the repository now, or tried here
	// again.
	Push(ctx context.Context, push PushRequest, receive Receive) (Refusals, error)
}

// Receive runs receive-pack for some of the commands of a push. It gives those that git refuses; on
// an error nothing was applied.
type Receive func(ctx context.Context, into *repository.Locked, commands []repostate.Change) (Refusals, error)

// Refusals map references of a push that were not moved to the reasons.
type Refusals map[string]string

// PushRequest is what a client asks to push.
type PushRequest struct {
	Ref       nostr.RepoRef
	Changes   []repostate.Change
	Atomic    bool   // all or nothing
	Client    string // the client key from the front door (proto.HeaderClient), empty if it is not known
	PackBytes int64  // length of the pack as it came; 0 for Authorize, and for a push that sends none
}

// Refuse is why a push is not taken, in words for the user: "authorisation failed: no state event
// authorises these references".
func Refuse(reason string) error { return &failure{resultRefused, reason, http.StatusForbidden, nil} }

// Unavailable is that a repository that there is, or may be, cannot be used now: a reason for the
// user, and an error for the log; nil: it does not concern the operator.
func Unavailable(reason string, err error) error {
	return &failure{resultError, reason, http.StatusServiceUnavailable, err}
}

var (
	// ErrNotFound is a repository that no announcement speaks for.
	ErrNotFound error = errNotFound
	errNotFound       = &failure{resultError, "repository not found: no announcement of it is served or held here",
		http.StatusNotFound, nil}

	// errElsewhere is a repository that another worker holds. The request is answered by 421
	// (Misdirected Request, RFC 9110), which is never for a client: the front door sends it to that
	// worker.
	errElsewhere = &failure{resultError, "another worker holds the repository", http.StatusMisdirectedRequest, nil}
)

// Unwritable is the reason where the disk takes nothing.
const Unwritable = "the repository cannot be written now, try again later"

// Options of the handler.
type Options struct {
	// PRs decides for paths below /prs (GRASP-06). nil: there are none.
	PRs Authority

	// MaxPushBytes bounds what a push sends (NGIT_MAX_PUSH_BYTES).
	MaxPushBytes int64

	// Stall is how long a client may take for 32 KiB of its request or of its answer.
	Stall time.Duration

	// Patience is how long a request waits for a free git process before it is answered by 503.
	// Default 30 s.
	Patience time.Duration

	// KeepAlive is how often a client that has sent its push and waits is told that we still work.
	// Default 5 s.
	KeepAlive time.Duration

	// Holder returns where the worker listens that holds an identifier now, unless it is this one;
	// false: none does. It is asked for pushes that were read in when the repository moved.
	Holder func(identifier string) (address string, held bool)

	// HandOver is how long such a push waits until a worker holds the repository.
	HandOver time.Duration

	Log     *slog.Logger
	Metrics *Metrics
}

// pushRefused is in the log for every push that is not taken, where a ban hides the repository too.
const pushRefused = "push refused"

// retryAfter is how soon what failed for now may be asked for again, in seconds.
const retryAfter = "10"

// handler serves all repositories.
type handler struct {
	Options
	authority Authority
}

// New makes the handler for every path that nostr.ParseRepositoryPath reads.
func New(a Authority, o Options) http.Handler {
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 5*time.Second)
	return &handler{Options: o, authority: a}
}

// exchange is one request, what it is about, and its answer.
type exchange struct {
	*handler
	w         http.ResponseWriter
	r         *http.Request
	control   *http.ResponseController
	began     time.Time
	authority Authority
	client    string // its key, as the front door knows it; empty: it is not known
	ref       nostr.RepoRef
	prs       bool // it is below /prs
	repo      *repository.Repo
	shown     *repository.Repo // what is read: repo, or an empty one in its place
	log       *slog.Logger
	raw       io.Reader // the request as it comes, packed or not
	received  int64     // bytes of it that were read
	whole     bool      // the request has been read to its end

	contentType string // of the answer
	preamble    string // goes before its first byte
	begun       bool   // its header is sent
	pack        bool   // there is a pack in it
}

// ServeHTTP finds the repository and the service that is asked for.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	x := &exchange{
		handler: h, w: w, r: r, control: http.NewResponseController(w), began: time.Now(),
		authority: h.authority, client: r.Header.Get(proto.HeaderClient),
	}
	defer x.leave()
	path, err := nostr.ParseRepositoryPath(r.URL.EscapedPath())
	if err != nil {
		http.Error(w, "not found: "+err.Error(), http.StatusNotFound)
		return
	}
	x.ref = nostr.RepoRef{PubKey: path.PubKey, Identifier: path.Identifier}
	if x.prs = path.PRs; x.prs {
		x.authority = h.PRs
	}
	x.log = h.Log.With("repository", repository.Place{RepoRef: x.ref, PRs: x.prs}.String())
	if err := x.find(); err != nil {
		x.fail(err)
		return
	}
	x.serve(path)
}

// find asks for the repository.
func (x *exchange) find() (err error) {
	if x.authority == nil {
		return ErrNotFound
	}
	if x.repo, err = x.authority.Repository(x.r.Context(), x.ref); err != nil {
		_, told := errors.AsType[*failure](err)
		if told = told || errors.Is(err, repository.ErrElsewhere); !told && x.r.Context().Err() == nil {
			err = Unavailable("this repository cannot be looked up now, try again later",
				fmt.Errorf("look up the repository: %w", err))
		}
		return err
	}
	x.shown = x.repo
	switch {
	case x.repo.Exists():
		return nil
	case !x.prs:
		return ErrNotFound
	}
	x.shown, err = x.repo.Store.Empty(x.r.Context())
	return err
}

func (x *exchange) serve(path nostr.RepositoryPath) {
	service := path.Service
	isPost, allowed := service == uploadPack || service == receivePack, "GET, HEAD"
	if isPost {
		allowed = "POST"
	}
	switch want := "application/x-" + service + "-request"; {
	case !slices.Contains(strings.Split(allowed, ", "), x.r.Method):
		x.w.Header().Set("Allow", allowed)
		http.Error(x.w, "method not allowed", http.StatusMethodNotAllowed)
	case isPost && x.r.Header.Get("Content-Type") != want:
		http.Error(x.w, "the Content-Type is not "+want, http.StatusUnsupportedMediaType)
	case service == nostr.ServiceArchive:
		x.archive(path.Tag)
	case service == "HEAD":
		x.serveHead()
	case service == "info/refs":
		x.advertise(x.r.URL.Query().Get("service"))
	case service == uploadPack:
		x.fetch()
	case service == receivePack:
		x.push()
	default:
		http.Error(x.w, "this address is for git: git clone <this address>", http.StatusNotFound)
	}
}

// leave gives the connection back as it came. Where the client still sends, which the server reads
// a while to let it see the answer, that ends soon.
func (x *exchange) leave() {
	x.control.SetWriteDeadline(time.Time{})
	until := time.Time{}
	if !x.whole && x.r.ContentLength != 0 {
		until = time.Now().Add(lingering)
	}
	x.control.SetReadDeadline(until)
}

// failure is what a client is told of an error, and how it is counted.
type failure struct {
	result, sentence string
	status           int
	log              error // nil: it does not concern the operator
}

func (f *failure) Error() string { return f.sentence }
func (f *failure) Unwrap() error { return f.log }

// malformed is a request that breaks the protocol.
func malformed(format string, args ...any) error {
	return &failure{resultRefused, "bad request: " + fmt.Sprintf(format, args...), http.StatusBadRequest, nil}
}

// errLost is a client that went away.
var errLost = &failure{resultGone, "the connection was lost", http.StatusBadRequest, nil}

// understand says what an error means for the client.
func (x *exchange) understand(err error) *failure {
	known, is := errors.AsType[*failure](err)
	ofGit, failed := errors.AsType[*repository.Error](err)
	limitOf, limited := repository.LimitReached(err)
	switch {
	case is:
		return known
	case errors.Is(err, repository.ErrElsewhere):
		return errElsewhere
	case errors.Is(err, limit.ErrShare):
		return &failure{resultLimited, "too many git requests from your address at once, try again later",
			http.StatusTooManyRequests, nil}
	case errors.Is(err, limit.ErrFull):
		return &failure{resultBusy, "too many git requests at once, try again later", http.StatusServiceUnavailable, nil}
	case errors.Is(err, netguard.ErrTooLarge):
		return &failure{resultRefused, "the request is too large", http.StatusRequestEntityTooLarge, nil}
	case errors.Is(err, errInflated):
		return &failure{resultRefused, errInflated.Error(), http.StatusRequestEntityTooLarge, nil}
	case failed && strings.HasPrefix(ofGit.Messages, "fatal: protocol error"):
		return &failure{resultError, "bad request: git cannot read it", http.StatusBadRequest, nil}
	case x.r.Context().Err() != nil:
		return errLost
	case failed && strings.Contains(ofGit.Messages, "not our ref"): // git has told the client which
		return &failure{resultRefused, "bad request: an object that is wanted is not here", http.StatusNotFound, nil}
	case limited:
		return &failure{resultRefused, "git cannot answer this within the limit on its " + limitOf +
			"; ask for less at once", http.StatusRequestEntityTooLarge, nil}
	case repository.Unwritable(err):
		return &failure{resultError, Unwritable, http.StatusServiceUnavailable, err}
	case !x.shown.Exists(): // it was removed meanwhile
		return errNotFound
	}
	return &failure{resultError, "git failed on this server, try again later", http.StatusInternalServerError, err}
}

// fail answers a request to which nothing was answered yet, and returns its result.
func (x *exchange) fail(err error) (result string) {
	f := x.understand(err)
	if f.log != nil {
		x.log.Error("a git request failed", "error", f.log)
	}
	if f.result == resultRefused && strings.HasSuffix(x.r.URL.String(), receivePack) {
		x.log.Info(pushRefused, "client", x.client, "reason", err)
	}
	if x.begun {
		return f.result
	}
	if f.status == http.StatusServiceUnavailable || f.status == http.StatusTooManyRequests {
		x.w.Header().Set("Retry-After", retryAfter)
	}
	http.Error(x.w, f.sentence, f.status)
	return f.result
}

// end ends a request that is counted.
func (x *exchange) end(err error, operations ...string) {
	result := resultOK
	if err != nil {
		result = x.fail(err)
	}
	x.count(result, operations...)
}
