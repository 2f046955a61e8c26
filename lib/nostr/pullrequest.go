package nostr

import (
	"errors"
	"fmt"
)

// PullRequest is a pull request (NIP-34, kind 1618) or an update of one (kind 1619).
type PullRequest struct {
	Event *Event

	// Commit is the tip that is proposed (`c`), 40 or 64 hex digits.
	Commit string

	// Repos are the repositories that it is meant for (`a`). An update may name none.
	Repos []RepoRef

	// Clone are URLs where the commit can be fetched, as given.
	Clone []string

	// Root is the id of the pull request that an update belongs to (`E`, else `e`), and "" for a
	// pull request itself and for an update that names only repositories.
	Root string

	// Update says that this is kind 1619.
	Update bool
}

// ParsePullRequest reads kinds 1618 and 1619: both need a `c` with a commit id, a pull request an
// `a` that names a repository, an update such an `a`, or an `E` or `e` that names its pull request.
func ParsePullRequest(ev *Event) (*PullRequest, error) {
	if ev.Kind != KindPR && ev.Kind != KindPRUpdate {
		return nil, fmt.Errorf("kind %d is neither a pull request nor an update of one", ev.Kind)
	}
	if !IsHex64(ev.PubKey) {
		return nil, errors.New("the author is not a public key of 64 lower-case hex digits")
	}
	pr := &PullRequest{
		Event: ev, Commit: tagValue(ev.Tags, "c"), Repos: RootRefs(ev), Update: ev.Kind == KindPRUpdate,
	}
	if !IsObjectID(pr.Commit) {
		return nil, errors.New("the c tag must name the commit by 40 or 64 lower-case hex digits")
	}
	var err error
	if pr.Clone, err = tagValues(ev.Tags, "clone", MaxURLs); err != nil {
		return nil, err
	}
	if !pr.Update {
		if len(pr.Repos) == 0 {
			return nil, errors.New("a pull request needs an a tag that names a repository (30617:<public key>:<identifier>)")
		}
		return pr, nil
	}
	if pr.Root = rootOfUpdate(ev.Tags); pr.Root == "" && len(pr.Repos) == 0 {
		return nil, errors.New("a pull request update needs an E tag with the id of its pull request, " +
			"or an a tag that names a repository")
	}
	return pr, nil
}

// rootOfUpdate prefers `E` (NIP-22), then an `e` that is marked as root (NIP-10), then the first
// `e`.
func rootOfUpdate(tags Tags) string {
	marked, first := "", ""
	for _, tag := range tags {
		if len(tag) < 2 || !IsHex64(tag[1]) {
			continue
		}
		switch {
		case tag[0] == "E":
			return tag[1]
		case tag[0] != "e":
		case marked == "" && len(tag) > 3 && tag[3] == "root":
			marked = tag[1]
		case first == "":
			first = tag[1]
		}
	}
	if marked != "" {
		return marked
	}
	return first
}

// CloneURLs are the http and https clone URLs of the pull request, normalised, each once.
func (p *PullRequest) CloneURLs() []string { return normalizeCloneURLs(p.Clone) }
