package policy

import (
	"fmt"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Bounds of single events, in bytes of their JSON. What is larger is refused wherever it comes
// from.
const (
	// MaxAnnouncementBytes bounds the JSON of an announcement (30617).
	MaxAnnouncementBytes = 64 << 10
	// MaxStateBytes is what fits the front door's largest message: some 5,000 references with names
	// as clients write them.
	MaxStateBytes = 512 << 10
	// MaxPullRequestBytes leaves room for the longest description that other forges allow, 64 Ki
	// characters, in any script.
	MaxPullRequestBytes = 256 << 10
	// MaxPatchBytes bounds a patch (1617), MaxGraspListBytes a user's grasp list (10317).
	MaxPatchBytes     = 512 << 10
	MaxGraspListBytes = 16 << 10
	// MaxOtherBytes bounds every event of another kind.
	MaxOtherBytes = 128 << 10
)

// tooLarge refuses an event that is larger than those of its kind may be.
func tooLarge(c *Candidate) (Decision, bool) {
	most := MaxOtherBytes
	switch c.Event.Kind {
	case nostr.KindAnnouncement:
		most = MaxAnnouncementBytes
	case nostr.KindState:
		most = MaxStateBytes
	case nostr.KindPR, nostr.KindPRUpdate:
		most = MaxPullRequestBytes
	case nostr.KindPatch:
		most = MaxPatchBytes
	case nostr.KindUserGraspList:
		most = MaxGraspListBytes
	}
	if len(c.Raw) <= most {
		return Decision{}, false
	}
	return invalid(fmt.Errorf("an event of this kind may have %d bytes at most, and this one has %d", most, len(c.Raw))), true
}

// hold takes the event of a candidate into purgatory, under an identifier, in place of what it
// replaces. It drops what has to make room. Where there is no room the event is refused, which is
// not remembered, and nothing is dropped.
func (p *Policy) hold(k Knowledge, c *Candidate, identifier string, phase proto.Phase, replaced ...*held.Entry) (Decision, error) {
	reserved, err := p.isReserved(k, c.Event.PubKey, identifier)
	if err != nil {
		return Decision{}, err
	}
	now := p.now().UTC()
	entry, err := held.NewEntry(proto.Held{
		Event: c.Event, Identifier: identifier, Source: c.Source, Relay: c.Relay, Client: c.Client,
		Reserved: reserved, Phase: phase, HeldAt: now, ExpiresAt: now.Add(p.lifetime(phase)),
	})
	if err != nil {
		return Decision{}, err
	}
	evicted, full := k.Room().Admit(p.bounds, entry, replaced)
	if full != NotFull {
		return crowded(full), nil
	}
	stands, err := standsWithout(k, entry, evicted)
	if err != nil {
		return Decision{}, err
	}
	if !stands {
		return crowded(FullInAll), nil
	}
	d := Decision{Outcome: proto.HeldBack, Message: proto.MessagePurgatory, Hold: []*held.Entry{entry}}
	d.drop("", replaced...)
	for _, e := range evicted {
		d.add(Dropped{Entry: e, Evicted: true})
	}
	return d, nil
}

// standsWithout reports whether a new entry may still be held when others had to make room for it:
// what it depends on may be among them.
func standsWithout(k Knowledge, e *held.Entry, evicted []*held.Entry) (bool, error) {
	if len(evicted) == 0 {
		return true, nil
	}
	gone := idsOf(evicted)
	switch {
	case e.Phase == proto.PhaseVouched:
		vouched, _ := from(e.Event.PubKey, e.Identifier).isVouchedFor(k, gone)
		return vouched, nil
	case e.Event.Kind == nostr.KindState:
		return isAnnounced(k, e.Identifier, gone)
	}
	return true, nil
}

func idsOf(entries []*held.Entry) map[string]bool {
	ids := make(map[string]bool, len(entries))
	for _, e := range entries {
		ids[e.Event.ID] = true
	}
	return ids
}

// lifetime is how long an entry stays as it is.
func (p *Policy) lifetime(phase proto.Phase) time.Duration {
	switch phase {
	case proto.PhaseSilent:
		return p.silent
	case proto.PhaseVouched:
		// As long as those that vouch for it can last without anything happening; then it is looked
		// at again.
		return p.waits + p.silent
	}
	return p.waits
}

// isReserved reports whether an event of this author goes into the room of owners and maintainers
// of served repositories.
func (p *Policy) isReserved(k Knowledge, author, identifier string) (bool, error) {
	if p.bounds.Reserved == 0 {
		return false, nil
	}
	return p.isServed(k, author, identifier)
}

// crowded refuses an event for which there is no room, in the words of whoever can do something
// about it.
func crowded(full Full) Decision {
	switch full {
	case FullForAuthor:
		return forgotten(ReasonCrowded, "rate-limited: too much of this author waits for git data here; push what waits, or try again later")
	case FullForClient:
		return forgotten(ReasonCrowded, "rate-limited: too much from your address waits for git data here; push what waits, or try again later")
	case FullForRelay:
		return forgotten(ReasonCrowded, "rate-limited: too much from this relay waits for git data here")
	}
	return forgotten(ReasonCrowded, "rate-limited: too much waits for git data here; try again later")
}
