// Package fetch brings git objects from servers of strangers, by id, over smart HTTP.
package fetch

import (
	"context"
	"fmt"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

// Limits bound one fetch.
type Limits struct {
	Timeout  time.Duration
	MaxBytes int64
}

// Result is what a fetch brought.
type Result struct {
	Bytes   int64
	Objects int
	Got     []string // those of the wanted ids that are there now
}

// Cause is why a fetch failed: a bounded label for metrics.
type Cause string

// Causes.
const (
	CauseNotFound     Cause = "not_found"      // 404, 410
	CauseForbidden    Cause = "forbidden"      // 401, 403
	CauseRateLimited  Cause = "rate_limited"   // 429
	CauseServer       Cause = "server"         // any other status
	CauseNotGit       Cause = "not_git"        // what answers is no git server
	CauseNoSuchObject Cause = "no_such_object" // it has, or gives, none of what is wanted
	CauseBadPack      Cause = "bad_pack"
	CauseTooLarge     Cause = "too_large"
	CauseTimeout      Cause = "timeout"
	CauseCanceled     Cause = "canceled" // by us
	CauseConnect      Cause = "connect"
	CauseDNS          Cause = "dns"
	CauseTLS          Cause = "tls"
	CauseRefused      Cause = "refused" // by the network guard
	CauseOurs         Cause = "ours"    // our own disk or git
)

// Error is a fetch that brought nothing.
type Error struct {
	Cause Cause
	Err   error
}

// Error is a sentence for the log.
func (e *Error) Error() string { return fmt.Sprintf("fetch: %v", e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fetch brings the wanted objects, or part of them. The error, if any, is an *Error.
func Fetch(ctx context.Context, guard *netguard.Guard, url string, into *repository.Repo, want []string, l Limits) (Result, error) {
	return Result{}, &Error{Cause: CauseOurs, Err: context.Canceled}
}
