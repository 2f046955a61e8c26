package policy

import (
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// remove decides whether an accepted event leaves the log, because a repository that it was for has
// been removed: it does if nothing that is here needs it any more.
func (p *Policy) remove(k Knowledge, c *Candidate) (Decision, error) {
	d := Decision{Outcome: proto.Done}
	have, err := k.Accepted(c.Event.ID)
	if have == nil || err != nil {
		return d, err
	}
	needed, err := p.isNeeded(k, c, have)
	d.Removes = !needed && err == nil
	return d, err
}

// isNeeded reports whether an accepted event has a place here: a state, if its author speaks for a
// repository that is here or waits; a pull request that is offered below /prs/ (GRASP-06), always,
// for its commit lies in its author's own repository; everything else, if it would be accepted now,
// or names a repository whose owner speaks for one that is here or waits: a pull request for a
// maintainer is one for the repository, and an owner who comes back finds what others wrote. What
// expires goes by itself: indexes cannot take it out (eventdb.Record).
func (p *Policy) isNeeded(k Knowledge, c *Candidate, ev *nostr.Event) (bool, error) {
	if eventdb.Expiration(ev) != 0 {
		return true, nil
	}
	switch ev.Kind {
	case nostr.KindState:
		return p.speaksHere(k, ev.PubKey, ev.Tags.GetD())
	case nostr.KindAnnouncement, nostr.KindDeletion, nostr.KindUserGraspList:
		return true, nil // they stand for themselves
	case nostr.KindPR, nostr.KindPRUpdate:
		pr, err := nostr.ParsePullRequest(ev)
		if err == nil && len(pr.PRServiceIdentifiers(p.hosting.Domain())) > 0 {
			return true, nil
		}
	}
	d, err := p.referenced(k, c)
	if d.Outcome == proto.Accepted || err != nil {
		return true, err
	}
	return p.namesOneHere(k, ev)
}

// namesOneHere reports whether an event names a repository whose owner speaks for one that is here
// or waits. One that names too many to look at does.
func (p *Policy) namesOneHere(k Knowledge, ev *nostr.Event) (bool, error) {
	looked := 0
	for _, address := range nostr.ReferencesOf(ev).Addresses {
		ref, is := address.Repo()
		if !is {
			continue
		}
		if looked++; looked > maxTagged {
			return true, nil
		}
		if here, err := p.speaksHere(k, ref.PubKey, ref.Identifier); here || err != nil {
			return here, err
		}
	}
	return false, nil
}

// speaksHere reports whether somebody owns a repository of the identifier that is hosted or
// archived here, or waits, or is in the recursive maintainer set of one. Where a walk is too long
// to tell, it does.
func (p *Policy) speaksHere(k Knowledge, pubkey, identifier string) (bool, error) {
	own := nostr.RepoRef{PubKey: pubkey, Identifier: identifier}
	for _, e := range k.Held().At(own.Address()) {
		if e.Event.Kind == nostr.KindAnnouncement && e.Phase != proto.PhaseVouched {
			return true, nil
		}
	}
	if kept, err := p.isKept(k, own); kept || err != nil {
		return kept, err
	}
	w := from(pubkey, identifier)
	for at, ok := w.next(); ok; at, ok = w.next() {
		naming, err := k.AcceptedNaming(identifier, at)
		if err != nil {
			return false, err
		}
		for _, a := range naming {
			if p.hosting.Keeps(a) || !w.visit(a.Ref.PubKey) {
				return true, nil
			}
		}
		for _, e := range k.Held().Naming(identifier, at) {
			if e.Phase != proto.PhaseVouched || !w.visit(e.Event.PubKey) {
				return true, nil
			}
		}
	}
	return false, nil
}
