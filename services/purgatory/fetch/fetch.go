// Package fetch brings git objects from servers of strangers, by id, over smart HTTP. It speaks the
// protocol itself, through the network guard: no git of ours ever connects to a URL that a stranger
// wrote. Which server is asked for what it does not decide: package hunt does.
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
	Timeout  time.Duration // of all requests together
	Silence  time.Duration // without a byte; 0: as long as Timeout
	MaxBytes int64         // of the packs (NGIT_MAX_FETCH_BYTES)
	// MinRate is the lowest rate in bytes a second at which a server may send, over a minute. A
	// server may think before it sends a pack, but not longer than maxThinking.
	MinRate int64
	// Agent names us to servers. Optional.
	Agent string
	// Prover proves who we are. Then redirects are not followed: the proof is for this server. Optional.
	Prover Prover
	// Again asks for objects that lie here too: they count only if they come.
	Again bool
	// Misses is what servers lacked before. Optional.
	Misses *Misses
	// Party is to whom the spools of packs are charged.
	Party string
	// Account pays for what is kept. Optional.
	Account Account

	window time.Duration // zero: a minute
}

// Account pays for the bytes of packs.
type Account interface {
	// Take is asked before so many bytes more are kept. Its error ends the fetch.
	Take(bytes int64) error
}

// Prover proves who we are, with each request.
type Prover interface {
	// Prove signs a proof for a URL.
	Prove(url string) (string, error)
}

// Result is what a fetch brought.
type Result struct {
	Bytes    int64    // of packs
	Requests int      // that the server got
	Got      []string // those of the wanted ids that are there now, in the order of want
	// TooOften: the server said at last that it is asked too often, though something came before that.
	// RetryAfter is how long it wants to be left alone, if it said so.
	TooOften   bool
	RetryAfter time.Duration
}

const (
	// maxHaves bounds how many of our tips a server is told, so that it sends only what is new.
	maxHaves = 256
	// maxRequests bounds the requests of one fetch. What is left then is for the next one, which knows
	// what the server lacks.
	maxRequests = 48
)

// Fetch asks the git server at url for the wanted objects that are not there yet, and stores what
// it sends, with all that these objects link to. A server that has a part of them brings that part:
// the error is nil if anything that was wanted came, or nothing was missing. Else it is an *Error
// that says why nothing came, and nothing that the server sent is kept: no stranger fills the disk,
// or makes a repository look as if its data had come, with objects that were not asked for.
func Fetch(ctx context.Context, guard *netguard.Guard, url string, into *repository.Leased, want []string,
	l Limits) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	l.window, l.Silence = cmp.Or(l.window, time.Minute), cmp.Or(l.Silence, l.Timeout)
	f := &fetching{client: guard.HTTPClient(), limits: l, left: l.MaxBytes, into: into}
	if l.Prover != nil {
		f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	missing, err := want, error(nil)
	if !l.Again {
		missing, err = into.Missing(ctx, want)
	}
	if f.missing = missing; err == nil && len(missing) > 0 {
		err = f.run(ctx, url)
	}
	if err == nil { // what has come counts though the time is over, but a lease that ends ends this too
		during, end := into.During(context.WithoutCancel(ctx))
		missing, err = into.Missing(during, want)
		end()
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
	into    *repository.Leased
	missing []string // what it is for
	left    int64    // bytes that may still come: of packs, and what is said beside them
	haves   []string // tips of ours
	pace    *pace    // of the request under way
	lacks   []string // what the server turned out not to have
	result  Result
}

// run asks for all of the missing objects, by id, in the version of the protocol in which git gives
// any object that it has. A server that refuses some of them is asked for its list of references:
// what it lists is fetched together, and the rest little by little.
func (f *fetching) run(ctx context.Context, url string) error {
	refs, err := f.into.Refs()
	if err != nil {
		return err
	}
	for name, id := range refs.ByName {
		if len(f.haves) < maxHaves && !strings.HasPrefix(name, "refs/nostr/") {
			f.haves = append(f.haves, id)
		}
	}
	ask := slices.DeleteFunc(slices.Clone(f.missing), func(id string) bool { return len(id) != 40 })
	var listing *server
	if known, is := f.limits.Misses.of(url, time.Now()); is {
		if listing, err = f.discover(ctx, url, ""); err != nil {
			return err
		}
		if ask = f.unknown(ask, listing, known); len(ask) == 0 {
			return failed(CauseNoSuchObject, "it lists the same as before, when it had none of the wanted objects")
		}
	}
	server, err := f.discover(ctx, url, version2)
	if err != nil {
		return err
	}
	if server.byID {
		if err = f.request(ctx, server, ask); !refuses(err) {
			return err
		}
	}
	if listing == nil {
		var problem error
		if listing, problem = f.discover(ctx, url, ""); problem != nil {
			return cmp.Or(err, problem)
		}
	}
	return f.listed(ctx, url, server, listing, ask, err)
}

// unknown are those objects of which it is not known that the server lacks them.
func (f *fetching) unknown(ask []string, listing *server, known missing) []string {
	if listing.protocol != "" || listing.references != known.references {
		return ask
	}
	lacks := map[string]bool{}
	for _, id := range known.objects {
		lacks[id] = true
	}
	return slices.DeleteFunc(slices.Clone(ask), func(id string) bool { return lacks[id] })
}

// listed asks for what a server lists, together, and then for the rest if it gives objects by id.
// It notes what the server lacks.
func (f *fetching) listed(ctx context.Context, url string, server, listing *server, ask []string, refusal error) error {
	offered := slices.DeleteFunc(slices.Clone(ask), func(id string) bool { return !listing.advertised[id] })
	rest := without(ask, offered...)
	err := refusal
	if len(offered) > 0 {
		if err = f.bring(ctx, listing, offered); err != nil && !refuses(err) {
			return err
		}
	}
	came := err == nil && len(offered) > 0
	switch {
	case len(rest) == 0:
	case server.byID && (len(offered) > 0 || len(rest) > 1):
		if problem := f.bring(ctx, server, rest); !came {
			err = problem
		}
	default:
		f.lacks = append(f.lacks, rest...)
	}
	if listing.protocol == "" {
		f.limits.Misses.add(url, listing.references, f.lacks, time.Now())
	}
	if err == nil && !came && len(offered)+len(rest) > 0 && f.result.Bytes == 0 {
		err = failed(CauseNoSuchObject, "the server gives none of the wanted objects")
	}
	return err
}

// bring asks for objects. However a server words its refusal, an object that it lacks
// hides no other: where it names that object, the others are asked for without it, and else each
// half for itself. It fails only if nothing came.
func (f *fetching) bring(ctx context.Context, s *server, ask []string) error {
	err := failed(CauseNoSuchObject, "the server gives none of the wanted objects")
	for len(ask) > 0 && f.result.Requests < maxRequests && !f.result.TooOften {
		if err = f.request(ctx, s, ask); !refuses(err) {
			return err
		}
		refusal, _ := errors.AsType[*Error](err)
		switch {
		case slices.Contains(ask, refusal.refused):
			f.lacks, ask = append(f.lacks, refusal.refused), without(ask, refusal.refused)
		case len(ask) == 1:
			if refusal.Cause == CauseNoSuchObject {
				f.lacks = append(f.lacks, ask...)
			}
			return err
		default:
			half := len(ask) / 2
			first := f.bring(ctx, s, ask[:half])
			if first != nil && !refuses(first) {
				return first
			}
			second := f.bring(ctx, s, ask[half:])
			if first == nil || second == nil {
				return nil
			}
			return second
		}
	}
	return err
}

// refuses reports whether an error may be about single objects.
func refuses(err error) bool {
	failure, is := errors.AsType[*Error](err)
	return is && Classify(err) == failure.Cause &&
		slices.Contains([]Cause{CauseNoSuchObject, CauseServer, CauseNotGit, CauseNotFound, CauseForbidden}, failure.Cause)
}

// Cause is why a fetch brought nothing: a label for metrics, one of those below.
type Cause = netguard.Cause

// Causes beside those of netguard.
const (
	CauseNotFound     Cause = "not_found"      // 404, 410
	CauseForbidden    Cause = "forbidden"      // 401, 403
	CauseRateLimited  Cause = "rate_limited"   // 429, or a text like it
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

	refused    string        // the object that the server does not give, where it says so
	retryAfter time.Duration // how long the server wants to be left alone, of CauseRateLimited
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
