package policy

import (
	"slices"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// pullRequest decides kinds 1618 and 1619: they wait for their commit, under an identifier where it
// can be hunted for and released.
func (p *Policy) pullRequest(k Knowledge, c *Candidate) (Decision, error) {
	identifier, nowhere, err := p.placeOf(k, c, c.Event)
	if err != nil || identifier == "" {
		return nowhere, err
	}
	return p.hold(k, c, identifier, proto.PhaseWaiting)
}

// placeOf is the identifier that the pull request or update ev of a candidate belongs under. If
// that is nowhere, it is "", and the decision says why.
func (p *Policy) placeOf(k Knowledge, c *Candidate, ev *nostr.Event) (identifier string, nowhere Decision, err error) {
	pr, err := nostr.ParsePullRequest(ev)
	if err != nil {
		return "", invalid(err), nil
	}
	identifier, missing, err := p.identifierOf(k, pr)
	if err != nil {
		return "", Decision{}, err
	}
	if identifier == "" {
		return "", orphan(c, missing), nil
	}
	return identifier, Decision{}, nil
}

// maxTagged bounds how many of the repositories that an event tags are looked at.
const maxTagged = 100

// identifierOf finds where a pull request, or an update of one, belongs: under the identifier of
// the first repository that it tags that is hosted here, or whose owner maintains one that is. What
// tags accepted announcements only whose repositories are elsewhere belongs under the first of
// those. An update that tags none belongs where its pull request does. What is offered below /prs/
// (GRASP-06) belongs under the first identifier that it is offered for, because its commit is
// pushed there, and is for any repository. An identifier of "" means nowhere; missing says what
// would change that.
func (p *Policy) identifierOf(k Knowledge, pr *nostr.PullRequest) (identifier string, missing []string, err error) {
	if p.offers {
		if offered := pr.PRServiceIdentifiers(p.hosting.Domain()); len(offered) > 0 {
			return offered[0], nil, nil
		}
	}
	repos := pr.Repos
	if pr.Update {
		root, err := k.Accepted(pr.Root)
		if err != nil {
			return "", nil, err
		}
		if root == nil || root.Kind != nostr.KindPR {
			return "", []string{pr.Root}, nil
		}
		repos = append(repos, nostr.RootRefs(root)...)
	}
	elsewhere := ""
	for _, ref := range repos[:min(len(repos), maxTagged)] {
		here, err := p.isServed(k, ref.PubKey, ref.Identifier)
		if err != nil {
			return "", nil, err
		}
		if here {
			return ref.Identifier, nil, nil
		}
		have, err := k.AcceptedAt(ref.Address())
		if err != nil {
			return "", nil, err
		}
		if have != nil && elsewhere == "" {
			elsewhere = ref.Identifier
		}
		missing = append(missing, ref.String())
		// The owner's announcement of it may name the author of this address as a maintainer.
		if key := MissingAnnouncement(ref.Identifier); !slices.Contains(missing, key) {
			missing = append(missing, key)
		}
	}
	return elsewhere, missing, nil
}

// releasePullRequest decides a held pull request or update whose commit is there.
func (p *Policy) releasePullRequest(k Knowledge, c *Candidate, entry *held.Entry) (Decision, error) {
	identifier, nowhere, err := p.placeOf(k, c, entry.Event)
	if err != nil || identifier == "" {
		return nowhere, err
	}
	return accepted(), nil
}
