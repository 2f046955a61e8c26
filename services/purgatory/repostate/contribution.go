package repostate

import (
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// EventOf is the id of the event that a reference below refs/nostr/ is named for. A *Refused says
// why a contributor cannot push that reference (GRASP-06).
func EventOf(c Change) (id string, err error) {
	id, below := strings.CutPrefix(c.Name, prefixNostr)
	switch {
	case !below:
		return "", refused("%s cannot be pushed here: only refs/nostr/<event-id> can, the commit of a pull request", c.Name)
	case !nostr.IsHex64(id):
		return "", refused("%s is not named for an event id of 64 hex digits", c.Name)
	case c.New == "":
		return "", refused("%s cannot be deleted by a push; delete its event", c.Name)
	}
	return id, nil
}

// CheckContribution says why a commit does not belong into a contributor's repository under the
// name of an event, as a *Refused: the event must be a pull request or an update of one that the
// contributor has signed, that names the identifier in `a`, this address in `clone` and the commit
// in `c` (GRASP-06).
func CheckContribution(ev *nostr.Event, at nostr.RepoRef, commit, domain string) error {
	pr, err := nostr.ParsePullRequest(ev)
	switch {
	case err != nil:
		return refused("event %s is no pull request and names no commit", ev.ID)
	case pr.Event.PubKey != at.PubKey:
		return refused("event %s is signed by somebody else than %s", ev.ID, npub(at.PubKey))
	case !slices.ContainsFunc(pr.Repos, func(ref nostr.RepoRef) bool { return ref.Identifier == at.Identifier }):
		return refused("event %s names no repository with the identifier %q in an a tag", ev.ID, at.Identifier)
	case !slices.Contains(pr.PRServiceIdentifiers(domain), at.Identifier):
		return refused("event %s does not name %s%s in its clone tag", ev.ID, domain, nostr.PRsURLPath(npub(at.PubKey), at.Identifier))
	case pr.Commit != commit:
		return refused("event %s names commit %s, not %s", ev.ID, pr.Commit, commit)
	}
	return nil
}

func npub(pubkey string) string {
	s, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		return pubkey // not reached: it is a key
	}
	return s
}
