package policy

import (
	"errors"
	"slices"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// state decides kind 30618: the author must be a confirmed maintainer of some coordinate of the
// identifier, then it waits for its objects. The clocks of the held announcements of these
// coordinates restart. Older held states of the author go with one that is released: the log holds
// a newer one from then on. States of other authors stay, older ones too: they count when this
// author leaves, is removed, or deletes the state.
func (p *Policy) state(k Knowledge, c *Candidate) Decision {
	s, err := nostr.ParseState(c.Event)
	if err == nil && s.IsSHA256() {
		err = errors.New("repositories of git's SHA-256 object format are not hosted here; make it again with git init --object-format=sha1")
	}
	if err != nil {
		return invalid(err)
	}
	all := announced(k, s.Identifier)
	all.WithSilent = true // the state would revive them
	if !authority.Speaks(all, c.Event.PubKey, nil) {
		return p.withoutAuthority(k, s)
	}
	d := p.hold(k, c, s.Identifier, proto.PhaseWaiting)
	switch d.Outcome {
	case proto.HeldBack:
		for _, e := range spokenFor(k, s.Identifier, c.Event.PubKey) {
			d.Hold = append(d.Hold, p.restarted(e))
		}
	case proto.Accepted:
		address, _ := nostr.AddressOf(c.Event)
		for _, e := range k.Held().At(address) {
			if nostr.Replaces(c.Event, e.Event) {
				d.drop(rememberSuperseded, e)
			}
		}
	}
	return d
}

// withoutAuthority rejects a state whose author speaks for no coordinate of the identifier. It is
// decided again when an announcement comes on which that depends, as the author's acceptance is.
func (p *Policy) withoutAuthority(k Knowledge, s *nostr.State) Decision {
	if !isAnnounced(k, s.Identifier, nil) {
		return healable("no_announcement", "invalid: no announcement exists for this repository",
			MissingAnnouncement(s.Identifier))
	}
	var missing []string
	for _, key := range authority.Deciding(announced(k, s.Identifier), s.Event.PubKey, maxMissing) {
		missing = append(missing, announcedByKey+nostr.RepoRef{PubKey: key, Identifier: s.Identifier}.String())
	}
	return healable("unauthorized", "restricted: author not authorized for this repository", missing...)
}

// pullRequest decides kinds 1618 and 1619: they wait for their commit, under an identifier where it
// can be hunted for and released.
func (p *Policy) pullRequest(k Knowledge, c *Candidate) Decision {
	pr, err := nostr.ParsePullRequest(c.Event)
	if err != nil {
		return invalid(err)
	}
	identifier, missing := p.identifierOf(k, pr)
	if identifier == "" {
		return p.orphan(k, c, missing)
	}
	return p.hold(k, c, identifier, proto.PhaseWaiting)
}

// maxTagged bounds how many of the repositories that an event tags are looked at.
const maxTagged = 100

// identifierOf finds where a pull request, or an update of one, belongs: under the identifier of
// the first repository that it tags that is hosted here, or whose owner maintains one that is. What
// tags accepted announcements only whose repositories are elsewhere belongs under the first of
// those. An update belongs where its pull request does too, if that is here. What is offered below
// /prs/ (GRASP-06) belongs under the first identifier that it is offered for, because its commit is
// pushed there, and is for any repository. An identifier of "" means nowhere; missing says what
// would change that.
func (p *Policy) identifierOf(k Knowledge, pr *nostr.PullRequest) (identifier string, missing []string) {
	if p.settings.ContributorPRs {
		if offered := pr.PRServiceIdentifiers(p.hosting.Domain()); len(offered) > 0 {
			return offered[0], nil
		}
	}
	repos := pr.Repos
	if pr.Root != "" {
		if root := k.Accepted(pr.Root); root != nil && root.Kind == nostr.KindPR {
			repos = append(slices.Clone(repos), nostr.RootRefs(root)...)
		} else {
			missing = append(missing, pr.Root)
		}
	}
	asked := 0
	for _, ref := range repos[:min(len(repos), maxTagged)] {
		served := p.isHosted(k, ref)
		if !served && asked < maxOfServed { // whom the owner speaks for takes long to find out
			asked++
			served = p.speaksForHosted(k, ref)
		}
		if served {
			return ref.Identifier, nil
		}
		if identifier == "" && k.AcceptedAt(ref.Address()) != nil {
			identifier = ref.Identifier
		}
		// The owner's announcement of it may name the author of this address as a maintainer.
		missing = append(missing, ref.String(), MissingAnnouncement(ref.Identifier))
	}
	return identifier, missing
}

// referenced decides everything that has no rule of its own: it must name, or be named by, what is
// accepted. Held announcements do not count. What the service's own key has signed needs neither: an
// operator's CI coordinator uses that key.
func (p *Policy) referenced(k Knowledge, c *Candidate) Decision {
	refs := nostr.ReferencesOf(c.Event)
	for _, address := range refs.Addresses {
		if have := k.AcceptedAt(address); have != nil && nostr.KindOf(have.Kind).Vouches {
			return accepted()
		}
	}
	for _, id := range refs.IDs {
		if kind, have := k.AcceptedKind(id); have && nostr.KindOf(kind).Vouches {
			return accepted()
		}
	}
	if p.isOwn(c.Event) || k.Vouched(c.Event) {
		return accepted()
	}
	return p.orphan(k, c, missingOf(c.Event))
}

// ephemeral decides kinds 20000 to 29999: one that would be accepted is passed on to subscribers.
// Nothing of it is stored, held or remembered.
func (p *Policy) ephemeral(k Knowledge, c *Candidate) Decision {
	d := p.referenced(k, c)
	if d.Outcome == proto.Accepted {
		return Decision{Outcome: proto.PassedOn}
	}
	d.Remember, d.Park = false, false
	return d
}

// maxReported bounds how many of the authors that a report names are looked at.
const maxReported = 10

// report decides kind 1984 (NIP-56): it is about something that is accepted here, or about someone
// who wrote that.
func (p *Policy) report(k Knowledge, c *Candidate) Decision {
	looked := 0
	for tag := range c.Event.Tags.FindAll("p") {
		if looked++; looked > maxReported || len(tag) < 2 {
			break
		}
		if k.Wrote(tag[1]) {
			return accepted()
		}
	}
	return p.referenced(k, c)
}

// orphan rejects an event that no accepted event is linked to. What its author has just submitted is
// answered once and for all; what came by sync may have come before what it belongs to. What names
// something banned is told so.
func (p *Policy) orphan(k Knowledge, c *Candidate, missing []string) Decision {
	for _, name := range missing {
		ban := p.bans.Named(k.HiddenBy(name))
		if ref, err := nostr.ParseRepoRef(name); err == nil {
			ban = p.bans.Repository(ref)
		}
		if ban != nil {
			return blocked(ban)
		}
	}
	d := healable("orphan", "restricted: the event neither names nor is named by anything that is accepted here",
		missing...)
	d.Park = c.Source.Synced()
	return d
}

// Bounds of what is remembered as missing of one event, in entries and in bytes of each.
const (
	maxMissing      = 64
	maxMissingBytes = 512
)

// missingOf returns what would make an orphan acceptable: any event or address that it names, or to
// be named itself.
func missingOf(ev *nostr.Event) []string {
	missing := []string{namedKey + ev.ID}
	if address, ok := nostr.AddressOf(ev); ok {
		missing = append(missing, namedKey+address.String())
	}
	missing = slices.DeleteFunc(append(missing, nostr.NamesOf(ev)...),
		func(key string) bool { return len(key) > maxMissingBytes })
	return missing[:min(len(missing), maxMissing)]
}

// Prefixes of missing keys. A key without prefix is an event id or an address that is not accepted.
const (
	announcementKey = "d:"      // an announcement of this identifier, accepted or held
	announcedByKey  = "by:"     // another announcement at this address, accepted or held
	listedKey       = "listed:" // an announcement, accepted or held, that lists the author of this address
	namedKey        = "named:"  // an accepted event that names this id or address
)

// MissingAnnouncement is the missing key of any announcement of an identifier.
func MissingAnnouncement(identifier string) string { return announcementKey + identifier }

// missingInvitation is the missing key of an announcement by another that lists the author of this.
func missingInvitation(ref nostr.RepoRef) string { return listedKey + ref.String() }

// Arrivals returns the keys that arrive with a candidate that was accepted or held: what was
// rejected because it missed one of them deserves another decision.
func Arrivals(c *Candidate, outcome proto.Outcome) []string {
	var keys []string
	ev := c.Event
	if ev.Kind == nostr.KindAnnouncement && (outcome == proto.Accepted || outcome == proto.HeldBack) {
		identifier := ev.Tags.GetD()
		keys = append(keys, MissingAnnouncement(identifier), announcedByKey+nostr.RepoRef{PubKey: ev.PubKey,
			Identifier: identifier}.String())
		if a, err := c.Announcement(); err == nil {
			for _, listed := range a.Listed {
				keys = append(keys, missingInvitation(nostr.RepoRef{PubKey: listed, Identifier: identifier}))
			}
		}
	}
	if outcome != proto.Accepted || !nostr.KindOf(ev.Kind).Vouches {
		return keys
	}
	keys = append(keys, ev.ID)
	if address, ok := nostr.AddressOf(ev); ok {
		keys = append(keys, address.String())
	}
	for _, name := range nostr.NamesOf(ev) {
		keys = append(keys, namedKey+name)
	}
	return keys
}
