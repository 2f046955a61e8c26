// Package smarthttp serves repositories to git clients.
package smarthttp

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/purgatory/repository"
)

// Authority decides what is served and which pushes are taken.
type Authority interface {
	// Repository finds the repository of a request. ok=false is answered by 404. prs says that it was asked for below /prs (GRASP-06).
	Repository(ctx context.Context, ref nip34.RepoRef, prs bool) (repo *repository.Repo, ok bool)

	// Push runs under the identifier's lock: it authorises the commands, calls receive (at most once; it runs receive-pack and gives nil
	// if every command was applied), then releases. A *Refusal is told to the user's terminal as it is; of any other error only
	// that there was one.
	Push(ctx context.Context, ref nip34.RepoRef, prs bool, commands []Command, receive func(ctx context.Context) error) error
}

// Command is one reference that a push changes. Old or New are 40 zeros where the reference is created or deleted.
type Command struct{ Name, Old, New string }

// Create says whether the reference was not there before.
func (c Command) Create() bool { return c.Old == ZeroID }

// Delete says whether the reference is to go.
func (c Command) Delete() bool { return c.New == ZeroID }

// ZeroID is how git writes that there is no object.
const ZeroID = "0000000000000000000000000000000000000000"

// Refusal is why a push is not taken, in words for the user: "authorisation failed: no state event authorises these references".
type Refusal struct{ Reason string }

// Error is the reason.
func (r *Refusal) Error() string { return r.Reason }

// Options of the handler.
type Options struct {
	MaxPushBytes int64
	StallTimeout time.Duration
	Log          *slog.Logger
	Metrics      prometheus.Registerer
}

// New makes the handler of all git requests.
func New(a Authority, o Options) (http.Handler, error) {
	return http.NotFoundHandler(), nil
}
