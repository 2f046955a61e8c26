package release

import (
	"context"
	"fmt"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// maxPulls bounds the references below refs/nostr/ in a repository that are named for accepted
// events of one author, who need not have sent any data for them. Owners and confirmed maintainers
// have no such bound.
const maxPulls = 256

// Crowd counts these references for one look at some repositories.
type Crowd struct {
	events Events
	names  map[repository.Place]map[string]bool // references below refs/nostr/
	counts map[authorAt]int
}

type authorAt struct {
	repository.Place
	author string
}

// Crowd begins to count.
func (r *Releaser) Crowd() *Crowd {
	return &Crowd{r.Events, map[repository.Place]map[string]bool{}, map[authorAt]int{}}
}

// Full reports whether as many references are named for an author in a repository as may be. The
// caller sees to those who have no bound. Where there are few references of all authors, nothing is
// asked.
func (c *Crowd) Full(ctx context.Context, repo *repository.Repo, author string) (bool, error) {
	if !repo.Exists() {
		return false, nil
	}
	key := authorAt{repo.Place, author}
	if _, counted := c.counts[key]; !counted {
		names, err := c.namesIn(repo)
		if err != nil {
			return false, err
		}
		c.counts[key] = 0
		if len(names) >= maxPulls {
			for id, err := range c.events.PullsBy(ctx, author) {
				if err != nil {
					delete(c.counts, key)
					return false, fmt.Errorf("count the pull requests of %s: %w", author, err)
				}
				if names[repostate.PrefixNostr+id] {
					c.counts[key]++
				}
			}
		}
	}
	return c.counts[key] >= maxPulls, nil
}

func (c *Crowd) namesIn(repo *repository.Repo) (names map[string]bool, err error) {
	names, read := c.names[repo.Place]
	if !read {
		names, err = repo.NamesBelow(repostate.PrefixNostr)
		c.names[repo.Place] = names
	}
	return names, err
}

// Add counts one that was named just now, or will be when its commit is here.
func (c *Crowd) Add(at repository.Place, author string) { c.counts[authorAt{at, author}]++ }

// TooMany is why an author's commit is not named, as a *repostate.Refused.
func TooMany(author string) error {
	return &repostate.Refused{Reason: fmt.Sprintf("too many pull requests: this repository has %d of %s; delete some of them first",
		maxPulls, nostr.Npub(author))}
}

// isFull reports whether there is no room in an owner's repository for one more reference of the
// author of a pull request. It waits then, and is no cause to look again.
func (p *pass) isFull(ctx context.Context, owner string, pr repostate.PullRequest) (bool, error) {
	repo := p.repo(owner)
	if repo == nil || !slices.Contains(p.owners, owner) || repo.IsNamed(repostate.PrefixNostr+pr.Event.ID, pr.Commit) ||
		p.v.Serves(pr.Event.PubKey) {
		return false, nil
	}
	return p.crowd.Full(ctx, repo, pr.Event.PubKey)
}
