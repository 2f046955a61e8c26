package importer

import (
	"context"
	"fmt"

	"tendril.dev/cmd/tendril/gittree"
)

// Trees are bare repositories that are pushed to the server as their owners would push them: every
// check of a push holds.
type Trees struct {
	Git      gittree.Git
	Server   string // its http(s) URL
	Repos    []gittree.Repo
	Progress func(step string, done, of int)

	Pushed Pushed
}

// Pushed is what came of it.
type Pushed struct {
	Repositories int      `json:"repositories"`     // whose branches and tags are at the server
	Empty        int      `json:"empty"`            // without branches and tags
	Pulls        int      `json:"pulls"`            // commits of pull requests that are at the server
	Failed       []string `json:"failed,omitempty"` // "<path>: why"
}

// Push is for [Import].
func (t *Trees) Push(ctx context.Context, pulls map[string]bool) error {
	const nostrRefs = "refs/nostr/"
	prefixes, wanted := []string{"refs/heads/", "refs/tags/"}, func(string) bool { return true }
	if pulls != nil {
		prefixes, wanted = []string{nostrRefs}, func(name string) bool { return pulls[name[len(nostrRefs):]] }
	}
	for n, r := range t.Repos {
		t.Progress("repositories", n, len(t.Repos))
		count, err := t.Git.Push(ctx, r.At, r.On(t.Server).At, pulls == nil, wanted, prefixes...)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			t.Pushed.Failed = append(t.Pushed.Failed, fmt.Sprintf("%s: %v", r.At, err))
		case pulls != nil:
			t.Pushed.Pulls += count
		case count == 0:
			t.Pushed.Empty++
		default:
			t.Pushed.Repositories++
		}
	}
	return nil
}
