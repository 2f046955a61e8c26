package policy

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/held"
)

// announcement decides kind 30617.
func (p *Policy) announcement(k Knowledge, c *candidate.Candidate) (Decision, error) {
	a, err := nip34.ParseAnnouncement(c.Event)
	if err != nil {
		return invalid(err), nil
	}
	if p.refused.Has(a.Ref) {
		return rejected(ReasonBlacklisted, messageRefused), nil
	}
	mine, err := ownAnnouncements(k, a.Ref)
	if err != nil {
		return Decision{}, err
	}
	if mine.supersede(c.Event) {
		return duplicate(messageNewer), nil
	}
	if !a.ListsService(p.domain) {
		return p.elsewhere(k, a, mine)
	}
	if !p.hosted.Empty() && !p.hosted.Has(a.Ref) {
		return rejected(ReasonNotWhitelisted, messageNotHosted), nil
	}
	d := accepted()
	if mine.accepted == nil {
		if refusal, full := p.crowded(k, c.Event.PubKey); full && len(mine.held) == 0 {
			return refusal, nil
		}
		if d, err = p.holdNew(c, a.Ref.Identifier); err != nil {
			return Decision{}, err
		}
	}
	d.drop("", mine.held...)
	return d, nil
}

const (
	messageRefused   = "blocked: this repository is not welcome here"
	messageNotHosted = "blocked: this repository is not on the list of those that are hosted here"
	messageNotListed = "invalid: the announcement must list this service in its clone and relays tags"
)

// elsewhere decides an announcement that does not list us: it is accepted as a maintainer's. The author's own announcement counts
// too, so that the log learns where a repository went that was hosted here; that hosting ends.
func (p *Policy) elsewhere(k Knowledge, a *nip34.Announcement, mine own) (Decision, error) {
	known, err := announcements(k, a.Ref.Identifier)
	if err != nil {
		return Decision{}, err
	}
	for _, other := range known {
		if other.Ref.PubKey != a.Ref.PubKey && !slices.Contains(other.Maintainers, a.Ref.PubKey) {
			continue
		}
		d := accepted()
		d.drop("", mine.held...)
		gone := mine.ids()
		if len(gone) > 0 {
			d.drop("", statesWithout(k, known, a.Ref.Identifier, gone)...)
		}
		return d, nil
	}
	return healable(ReasonNotListed, messageNotListed, []string{MissingAnnouncement(a.Ref.Identifier)}), nil
}

// releaseAnnouncement decides a held announcement whose repository has git data now.
func (p *Policy) releaseAnnouncement(k Knowledge, entry *held.Entry) (Decision, error) {
	a := entry.Announcement
	switch {
	case p.refused.Has(a.Ref):
		return rejected(ReasonBlacklisted, messageRefused), nil
	case !a.ListsService(p.domain):
		return rejected(ReasonNotListed, messageNotListed), nil
	case !p.hosted.Empty() && !p.hosted.Has(a.Ref):
		return rejected(ReasonNotWhitelisted, messageNotHosted), nil
	}
	return accepted(), nil
}

// own is what is known of the announcements of one author and identifier.
type own struct {
	accepted *nostr.Event
	held     []*held.Entry
}

func ownAnnouncements(k Knowledge, ref nip34.RepoRef) (own, error) {
	have, err := k.AcceptedAt(ref.Address())
	o := own{accepted: have}
	for _, e := range k.HeldOf(ref.Identifier) {
		if e.Announcement != nil && e.Announcement.Ref == ref {
			o.held = append(o.held, e)
		}
	}
	return o, err
}

// supersede says whether one of them takes the place of ev.
func (o own) supersede(ev *nostr.Event) bool {
	return o.accepted != nil && !nip34.Replaces(ev, o.accepted) ||
		slices.ContainsFunc(o.held, func(e *held.Entry) bool { return !nip34.Replaces(ev, e.Event) })
}

func (o own) ids() map[string]bool {
	ids := map[string]bool{}
	if o.accepted != nil {
		ids[o.accepted.ID] = true
	}
	for _, e := range o.held {
		ids[e.Event.ID] = true
	}
	return ids
}

// announcements gives all of an identifier, accepted and held: both count for maintainers (spec/purgatory.md, What waits).
func announcements(k Knowledge, identifier string) ([]*nip34.Announcement, error) {
	served, err := k.AcceptedAnnouncements(identifier)
	if err != nil {
		return nil, err
	}
	all := slices.Clip(served)
	for _, e := range k.HeldOf(identifier) {
		if e.Announcement != nil {
			all = append(all, e.Announcement)
		}
	}
	return all, nil
}

// statesWithout gives the held states of an identifier that no announcement stands for once those with the ids in gone are gone:
// all of them, or, while another owner's announcement of that identifier remains, none (spec/purgatory.md, What waits).
func statesWithout(k Knowledge, known []*nip34.Announcement, identifier string, gone map[string]bool) []*held.Entry {
	for _, a := range known {
		if !gone[a.Event.ID] {
			return nil
		}
	}
	var states []*held.Entry
	for _, e := range k.HeldOf(identifier) {
		if e.Event.Kind == nip34.KindState {
			states = append(states, e)
		}
	}
	return states
}

// crowded refuses an event of an author for which purgatory has no room. Anybody may write there, and all of it is kept in memory.
func (p *Policy) crowded(k Knowledge, author string) (Decision, bool) {
	load := k.HeldLoad(author)
	switch {
	case p.mostByAuthor > 0 && load.OfAuthor >= p.mostByAuthor:
		return forgotten(ReasonCrowded, "rate-limited: too many events of this author wait for git data here; push what waits, or try again later"), true
	case p.mostBytes > 0 && load.Bytes >= p.mostBytes:
		return forgotten(ReasonCrowded, "rate-limited: too much waits for git data here; try again later"), true
	}
	return Decision{}, false
}

// holdNew writes the event of a candidate into purgatory, under an identifier.
func (p *Policy) holdNew(c *candidate.Candidate, identifier string) (Decision, error) {
	now := p.now().UTC()
	entry, err := held.NewEntry(proto.Held{
		Event: c.Event, Identifier: identifier, Source: c.Source, Relay: c.Relay, Client: c.Client,
		Phase: proto.PhaseWaiting, HeldAt: now, ExpiresAt: now.Add(p.hold),
	})
	if err != nil {
		return Decision{}, err
	}
	return Decision{Outcome: proto.HeldBack, Message: proto.MessagePurgatory, Hold: []*held.Entry{entry}}, nil
}

// revived gives the entry with its clock started anew.
func (p *Policy) revived(entry *held.Entry) *held.Entry {
	again := *entry
	again.Phase, again.ExpiresAt = proto.PhaseWaiting, p.now().UTC().Add(p.hold)
	return &again
}

// drop adds entries to what is deleted. remember is the reason to remember them by, or "".
func (d *Decision) drop(remember string, entries ...*held.Entry) {
	for _, e := range entries {
		if !slices.ContainsFunc(d.Drop, func(x Dropped) bool { return x.Entry.Key == e.Key }) {
			d.Drop = append(d.Drop, Dropped{Entry: e, Remember: remember})
		}
	}
}
