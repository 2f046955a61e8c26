package policy

import (
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/held"
)

// pullRequest decides kinds 1618 and 1619: they wait for their commit, under the identifier of the first of their repositories that
// is accepted.
func (p *Policy) pullRequest(k Knowledge, c *candidate.Candidate) (Decision, error) {
	identifier, nowhere, err := placeOf(k, c, c.Event)
	if err != nil || identifier == "" {
		return nowhere, err
	}
	if refusal, full := p.crowded(k, c.Event.PubKey); full {
		return refusal, nil
	}
	return p.holdNew(c, identifier)
}

// placeOf is the identifier that the pull request or update ev of a candidate belongs under. If that is nowhere, it is "", and the decision says why.
func placeOf(k Knowledge, c *candidate.Candidate, ev *nostr.Event) (identifier string, nowhere Decision, err error) {
	pr, err := nip34.ParsePullRequest(ev)
	if err != nil {
		return "", invalid(err), nil
	}
	identifier, missing, err := identifierOf(k, pr)
	if err != nil {
		return "", Decision{}, err
	}
	if identifier == "" {
		return "", orphan(c, missing), nil
	}
	return identifier, Decision{}, nil
}

// identifierOf finds where a pull request, or an update of one, belongs. An update that names no accepted repository belongs where
// its pull request does. An identifier of "" means nowhere; missing says what would change that.
func identifierOf(k Knowledge, pr *nip34.PullRequest) (identifier string, missing []string, err error) {
	repos := pr.Repos
	if pr.Update {
		root, err := k.Accepted(pr.Root)
		if err != nil {
			return "", nil, err
		}
		if root == nil || root.Kind != nip34.KindPR {
			return "", []string{pr.Root}, nil
		}
		repos = append(repos, nip34.RootRefs(root)...)
	}
	for _, ref := range repos {
		have, err := k.AcceptedAt(ref.Address())
		if err != nil {
			return "", nil, err
		}
		if have != nil {
			return ref.Identifier, nil, nil
		}
		missing = append(missing, ref.String())
	}
	return "", missing, nil
}

// releasePullRequest decides a held pull request or update whose commit is there.
func (p *Policy) releasePullRequest(k Knowledge, c *candidate.Candidate, entry *held.Entry) (Decision, error) {
	identifier, nowhere, err := placeOf(k, c, entry.Event)
	if err != nil || identifier == "" {
		return nowhere, err
	}
	return accepted(), nil
}
