package export

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/cmd/tendril/gittree"
)

// OnServer are the announced repositories at a server's http(s) URL. It may not host all of them.
func OnServer(server string, announced Announced) (repos []gittree.Repo, err error) {
	for ref := range announced {
		npub, err := nip19.EncodePublicKey(ref.PubKey)
		if err != nil {
			return nil, fmt.Errorf("name a repository: %w", err)
		}
		repos = append(repos, gittree.Repo{Npub: npub, Identifier: ref.Identifier}.On(server))
	}
	slices.SortFunc(repos, func(a, b gittree.Repo) int { return strings.Compare(a.At, b.At) })
	return repos, nil
}

// Copied is what came of copying repositories.
type Copied struct {
	Repositories int
	NotHosted    int // announced, but not at the server
	Failed       []error
}

// Copy brings the copies below dir up to date, one after the other, also where some cannot be
// copied. told is told how many are done.
func Copy(ctx context.Context, git gittree.Git, repos []gittree.Repo, dir string, told func(done, of int)) (Copied, error) {
	var done Copied
	for n, r := range repos {
		told(n, len(repos))
		err := git.Mirror(ctx, r.At, filepath.Join(dir, r.Name()))
		switch {
		case ctx.Err() != nil:
			return done, ctx.Err()
		case err == nil:
			done.Repositories++
		case gittree.NotFound(err):
			done.NotHosted++
		default:
			done.Failed = append(done.Failed, fmt.Errorf("%s: %w", r.Name(), err))
		}
	}
	return done, nil
}
