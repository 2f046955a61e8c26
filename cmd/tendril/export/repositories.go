package export

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/cmd/tendril/gittree"
)

// Source is a repository to copy.
type Source struct {
	From string // absolute path or URL
	To   string // below the folder of copies: <npub>/<identifier>.git
}

// OnDisk are the repositories of a git folder (NGIT_GIT_DATA_PATH).
func OnDisk(root string) (sources []Source, err error) {
	found, err := gittree.Find(root)
	for _, f := range found {
		sources = append(sources, Source{From: f.Path, To: filepath.Join(f.Npub, filepath.Base(f.Path))})
	}
	return sources, err
}

// OnServer are those of the announced repositories, at a server's http(s) URL. It may not host all
// of them.
func OnServer(server string, announced Announced) (sources []Source, err error) {
	for ref := range announced {
		npub, err := nip19.EncodePublicKey(ref.PubKey)
		if err != nil {
			return nil, fmt.Errorf("name a repository: %w", err)
		}
		from := gittree.URL(server, npub, ref.Identifier)
		sources = append(sources, Source{From: from, To: filepath.Join(npub, path.Base(from))})
	}
	slices.SortFunc(sources, func(a, b Source) int { return strings.Compare(a.To, b.To) })
	return sources, nil
}

// Copied is what came of copying repositories.
type Copied struct {
	Repositories int
	NotHosted    int // announced, but not at the server
	Failed       []error
}

// Copy brings the copies below dir up to date, one after the other, also where some cannot be
// copied. told is told how many are done.
func Copy(ctx context.Context, git gittree.Git, sources []Source, dir string, told func(done, of int)) (Copied, error) {
	var done Copied
	for n, s := range sources {
		told(n, len(sources))
		err := git.Mirror(ctx, s.From, filepath.Join(dir, s.To))
		switch {
		case ctx.Err() != nil:
			return done, ctx.Err()
		case err == nil:
			done.Repositories++
		case gittree.NotFound(err):
			done.NotHosted++
		default:
			done.Failed = append(done.Failed, fmt.Errorf("%s: %w", s.To, err))
		}
	}
	return done, nil
}
