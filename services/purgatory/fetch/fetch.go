// Package fetch brings git objects from servers of strangers, by id, over smart HTTP. It speaks the
// protocol itself, through the network guard: no git of ours ever connects to a URL that a stranger
// wrote.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

// Limits bound one fetch.
type Limits struct {
	Timeout  time.Duration // of all requests together (NGIT_FETCH_TIMEOUT); zero: only the context's
	MaxBytes int64         // of the packs (NGIT_MAX_FETCH_BYTES); zero: 2 GiB
	// MinRate is the lowest rate in bytes a second at which a server may send
	// (NGIT_FETCH_MIN_RATE); zero: any. It is looked at over every Window (zero: 30 s) from the
	// first byte of an answer on, which may take as long as Begin (zero: 1 min).
	MinRate       int64
	Begin, Window time.Duration
}

// Result is what a fetch brought.
type Result struct {
	Asked   bool     // the server was asked; false: nothing was missing
	Bytes   int64    // of packs
	Objects int      // in the packs that were kept
	Got     []string // those of the wanted ids that are there now, in the order of want
}

const (
	defaultMaxBytes = 2 << 30
	defaultBegin    = time.Minute
	defaultWindow   = 30 * time.Second
	// maxHaves bounds how many of our tips a server is told, so that it sends only what is new.
	maxHaves = 256
	// maxRefusals is how many wanted objects a server may refuse, one by one, before it is only
	// asked for what it advertises.
	maxRefusals = 5
)

// Fetch asks the git server at url for the wanted objects that are not there yet, and stores what
// it sends, with all that these objects link to. A server that has a part of them brings that part:
// the error is nil if anything that was wanted came, or nothing was missing. Else it is an *Error
// that says why nothing came, and nothing that the server sent is kept: no stranger fills the disk,
// or makes a repository look as if its data had come, with objects that nobody asked for.
func Fetch(ctx context.Context, guard *netguard.Guard, url string, into *repository.Repo, want []string, l Limits) (Result, error) {
	l.MaxBytes = cmp.Or(l.MaxBytes, defaultMaxBytes)
	l.Begin, l.Window = cmp.Or(l.Begin, defaultBegin), cmp.Or(l.Window, defaultWindow)
	if l.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.Timeout)
		defer cancel()
	}
	f := &fetching{client: guard.HTTPClient(), limits: l, into: into, left: l.MaxBytes}
	missing, err := into.Missing(ctx, want)
	if err != nil {
		return Result{}, failed(url, ours(err))
	}
	if len(missing) > 0 {
		f.missing, f.result.Asked = missing, true
		err = f.run(ctx, url)
	}
	still, lookup := into.Missing(context.WithoutCancel(ctx), want)
	if lookup != nil {
		return f.result, failed(url, ours(errors.Join(lookup, err)))
	}
	f.result.Got = without(want, still)
	if len(still) < len(missing) || len(missing) == 0 {
		return f.result, nil
	}
	if err == nil {
		err = &Error{Cause: CauseNoSuchObject, Err: repository.ErrUnwanted} // it was empty
	}
	return f.result, failed(url, err)
}

// without returns those of the ids that are not among the others, each once.
func without(ids, others []string) []string {
	passed := make(map[string]bool, len(ids))
	for _, id := range others {
		passed[id] = true
	}
	var left []string
	for _, id := range ids {
		if !passed[id] {
			left = append(left, id)
			passed[id] = true
		}
	}
	return left
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

// run asks for the advertisement, then for what of the missing objects the server may have. A
// server that does not offer objects by id in protocol version 0 is asked in version 2, in which
// git gives any object that it has. The last resort is to ask only for what is advertised.
func (f *fetching) run(ctx context.Context, url string) error {
	server, err := f.discover(ctx, url, f.missing)
	if err != nil {
		return err
	}
	haves, err := f.into.Named(ctx, func(name string) bool { return strings.HasPrefix(name, "refs/nostr/") })
	if err != nil {
		return ours(err)
	}
	haves = haves[:min(len(haves), maxHaves)]
	ask := sha1Only(f.missing)
	offered := server.offered(ask)
	if server.byID || len(offered) == len(ask) {
		err = f.insist(ctx, server, encodeRequest, ask, haves)
	} else if err = f.insist(ctx, server, encodeVersion2, ask, haves); saysNo(err) {
		err = &Error{Cause: CauseNoSuchObject, Err: err} // or it does not understand version 2
	}
	if len(offered) == 0 || len(offered) == len(ask) || classify(err) != CauseNoSuchObject {
		return err
	}
	return f.insist(ctx, server, encodeRequest, offered, haves)
}

// insist asks for objects. One that the server refuses spoils the whole request, so the others are
// asked for again without it.
func (f *fetching) insist(ctx context.Context, s *server, encode encoding, ask, haves []string) error {
	for refusals := 0; len(ask) > 0; refusals++ {
		err := f.request(ctx, s, encode(s.capabilities, ask, haves))
		refusal, refused := errors.AsType[*refusedWant](err)
		if !refused {
			return err
		}
		fewer := without(ask, []string{refusal.id})
		if refusals == maxRefusals || len(fewer) == len(ask) {
			return &Error{Cause: CauseNoSuchObject, Err: err}
		}
		ask = fewer
	}
	return &Error{Cause: CauseNoSuchObject, Err: errors.New("the server gives none of the wanted objects")}
}

// saysNo reports whether an error is the server's answer, and not a failure on the way.
func saysNo(err error) bool {
	if err == nil {
		return false
	}
	switch classify(err) {
	case CauseServer, CauseNotGit, CauseNotFound, CauseForbidden, CauseNoSuchObject:
		return true
	}
	return false
}

// sha1Only leaves out ids that no repository of ours can have.
func sha1Only(ids []string) []string {
	var kept []string
	for _, id := range ids {
		if len(id) == 40 {
			kept = append(kept, id)
		}
	}
	return kept
}
