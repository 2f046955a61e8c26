package fetch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

// Cause is why a fetch brought nothing: a label for metrics, one of those below.
type Cause string

// Causes.
const (
	CauseNotFound     Cause = "not_found"      // 404, 410
	CauseForbidden    Cause = "forbidden"      // 401, 403
	CauseRateLimited  Cause = "rate_limited"   // 429
	CauseServer       Cause = "server"         // any other status that is not 200, or an error that the server told
	CauseNotGit       Cause = "not_git"        // what answers does not speak git's protocol
	CauseNoSuchObject Cause = "no_such_object" // the server has, or gives, none of what is wanted
	CauseBadPack      Cause = "bad_pack"       // the pack is damaged, faulty or has links to what is nowhere
	CauseTooLarge     Cause = "too_large"
	CauseTimeout      Cause = "timeout"
	CauseTooSlow      Cause = "too_slow" // fewer bytes a second than the lowest rate
	CauseCanceled     Cause = "canceled" // by us
	CauseConnect      Cause = "connect"
	CauseDNS          Cause = "dns"
	CauseTLS          Cause = "tls"
	CauseRefused      Cause = "refused" // by the network guard
	CauseOurs         Cause = "ours"    // our own disk or git
)

// maxTold bounds what is kept of a server's words.
const maxTold = 200

// Error is a fetch that brought nothing.
type Error struct {
	Cause Cause
	URL   string
	Err   error
}

// Error is a sentence for the log.
func (e *Error) Error() string {
	if e.URL == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("fetch from %s: %v", e.URL, e.Err)
}

// Unwrap returns what happened.
func (e *Error) Unwrap() error { return e.Err }

// failed makes any error of a fetch an *Error with a cause and a URL.
func failed(url string, err error) *Error {
	cause := classify(err)
	if known, ok := errors.AsType[*Error](err); ok {
		err = known.Err
	}
	return &Error{Cause: cause, URL: url, Err: err}
}

// ours marks a failure of this machine.
func ours(err error) error { return &Error{Cause: CauseOurs, Err: err} }

// classify finds the cause of an error. A deadline that has passed, and a limit that was met, come
// before all that followed from them: the pack that was cut off is a bad one, too.
func classify(err error) Cause {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return CauseTimeout
	case errors.Is(err, context.Canceled):
		return CauseCanceled
	case errors.Is(err, netguard.ErrTooLarge):
		return CauseTooLarge
	}
	known, ok := errors.AsType[*Error](err)
	if ok && known.Cause != "" {
		return known.Cause
	}
	if errors.Is(err, repository.ErrBadPack) {
		return CauseBadPack
	}
	switch netguard.Classify(err) {
	case netguard.CauseDNS:
		return CauseDNS
	case netguard.CauseTLS:
		return CauseTLS
	case netguard.CauseRefused:
		return CauseRefused
	case netguard.CauseTimeout:
		return CauseTimeout
	case netguard.CauseProtocol:
		return CauseNotGit
	case netguard.CauseConnect:
		return CauseConnect
	}
	return CauseOurs
}

// notGit is an answer that is not what git's protocol asks for.
func notGit(format string, args ...any) error {
	return &Error{Cause: CauseNotGit, Err: fmt.Errorf(format, args...)}
}

// told cleans and bounds what a server said.
func told(words string) string {
	if len(words) > maxTold {
		words = words[:maxTold]
	}
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(words, "?"), func(c rune) bool {
		return unicode.IsSpace(c) || !unicode.IsPrint(c)
	}), " ")
}
