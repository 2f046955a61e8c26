// Package fetch brings git objects from servers of strangers, by id, over smart HTTP. It speaks the
// protocol itself, through the network guard: no git of ours ever connects to a URL that a stranger
// wrote.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

// Limits bound one fetch.
type Limits struct {
	Timeout  time.Duration // of all requests together (NGIT_FETCH_TIMEOUT)
	MaxBytes int64         // of the packs (NGIT_MAX_FETCH_BYTES)
	// MinRate is the lowest rate in bytes a second at which a server may send
	// (NGIT_FETCH_MIN_RATE). A server may think for two windows before it sends, and then each must
	// bring its bytes.
	MinRate int64

	window time.Duration // zero: 30 s
}

// Result is what a fetch brought.
type Result struct {
	Bytes int64    // of packs
	Got   []string // those of the wanted ids that are there now, in the order of want
}

const (
	// maxHaves bounds how many of our tips a server is told, so that it sends only what is new.
	maxHaves = 256
	// maxRefusals is how many wanted objects a server may refuse, one by one.
	maxRefusals = 5
)

// Fetch asks the git server at url for the wanted objects that are not there yet, and stores what
// it sends, with all that these objects link to. A server that has a part of them brings that part:
// the error is nil if anything that was wanted came, or nothing was missing. Else it is an *Error
// that says why nothing came, and nothing that the server sent is kept: no stranger fills the disk,
// or makes a repository look as if its data had come, with objects that were not asked for.
func Fetch(ctx context.Context, guard *netguard.Guard, url string, into *repository.Repo, want []string, l Limits) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	l.window = cmp.Or(l.window, 30*time.Second)
	f := &fetching{client: guard.HTTPClient(), limits: l, left: l.MaxBytes, into: into}
	missing, err := into.Missing(ctx, want)
	if f.missing = missing; err == nil && len(missing) > 0 {
		err = f.run(ctx, url)
	}
	if err == nil {
		missing, err = into.Missing(context.WithoutCancel(ctx), want)
	}
	if err != nil {
		return f.result, &Error{Cause: Classify(err), Err: err}
	}
	f.result.Got = without(want, missing...)
	return f.result, nil
}

func without(ids []string, others ...string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(others, id) })
}

// fetching is one fetch from one server.
type fetching struct {
	client  *http.Client
	limits  Limits
	into    *repository.Repo
	missing []string // what it is for
	left    int64    // bytes of packs that may still come
	result  Result
}

// run asks for all of the missing objects if the server gives any that it has, else for those that
// it advertises. A server of version 2 does not advertise, and is asked in an older version too, in
// which it does, when it lacks many of them.
func (f *fetching) run(ctx context.Context, url string) error {
	refs, err := f.into.Refs()
	if err != nil {
		return err
	}
	var haves []string
	for name, id := range refs.ByName {
		if len(haves) < maxHaves && !strings.HasPrefix(name, "refs/nostr/") {
			haves = append(haves, id)
		}
	}
	ask := slices.DeleteFunc(slices.Clone(f.missing), func(id string) bool { return len(id) != 40 })
	server, err := f.discover(ctx, url, version2)
	if err == nil && server.byID {
		err = f.insist(ctx, server, ask, haves)
		if Classify(err) != CauseNoSuchObject || len(ask) == 1 {
			return err
		}
		server, err = f.discover(ctx, url, "")
	}
	if err != nil {
		return err
	}
	offered := slices.DeleteFunc(ask, func(id string) bool { return !server.advertised[id] })
	return f.insist(ctx, server, offered, haves)
}

// insist asks for objects. One that the server refuses spoils the whole request, so the others are
// asked for again without it.
func (f *fetching) insist(ctx context.Context, s *server, ask, haves []string) error {
	err := failed(CauseNoSuchObject, "the server gives none of the wanted objects")
	for refusals := 0; len(ask) > 0 && refusals <= maxRefusals; refusals++ {
		err = f.request(ctx, s, ask, haves)
		refusal, is := errors.AsType[*Error](err)
		if !is || !slices.Contains(ask, refusal.refused) {
			break
		}
		ask = without(ask, refusal.refused)
	}
	return err
}

// Cause is why a fetch brought nothing: a label for metrics, one of those below.
type Cause = netguard.Cause

// Causes beside those of netguard.
const (
	CauseNotFound     Cause = "not_found"      // 404, 410
	CauseForbidden    Cause = "forbidden"      // 401, 403
	CauseRateLimited  Cause = "rate_limited"   // 429
	CauseServer       Cause = "server"         // any other status that is not 200, or an error that the server told
	CauseNotGit       Cause = "not_git"        // what answers does not speak git's protocol
	CauseNoSuchObject Cause = "no_such_object" // the server has, or gives, none of what is wanted
	CauseBadPack      Cause = "bad_pack"       // the pack is damaged, faulty or has links to what is nowhere
	CauseTooLarge     Cause = "too_large"
	CauseTooSlow      Cause = "too_slow" // fewer bytes a second than the lowest rate
	CauseCanceled     Cause = "canceled" // by us
	CauseOurs         Cause = "ours"     // our own disk or git
)

// Error is a fetch that brought nothing.
type Error struct {
	Cause Cause
	Err   error

	refused string // the object that the server does not give, where it says so
}

// Error is a sentence for the log.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns what happened.
func (e *Error) Unwrap() error { return e.Err }

// Classify finds the cause of an error; "": it is nil. A deadline that has passed, and a limit that
// was met, come before all that followed from them.
func Classify(err error) Cause {
	known, ok := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return netguard.CauseTimeout
	case errors.Is(err, context.Canceled):
		return CauseCanceled
	case errors.Is(err, netguard.ErrTooLarge):
		return CauseTooLarge
	case ok:
		return known.Cause
	case errors.Is(err, repository.ErrBadPack):
		return CauseBadPack
	case errors.Is(err, repository.ErrUnwanted):
		return CauseNoSuchObject
	}
	switch cause := netguard.Classify(err); cause {
	case netguard.CauseProtocol:
		return CauseNotGit
	case netguard.CauseOther:
		return CauseOurs
	default:
		return cause
	}
}
