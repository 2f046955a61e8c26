package authority

import (
	"fmt"

	"tendril.dev/lib/nostr"
)

// Nobody is why nobody has authority over a coordinate. The zero value: somebody has.
type Nobody struct {
	kind   nobody
	at     string // whose announcement is the reason
	before string // who names that key as lead
}

type nobody int

const (
	somebody nobody = iota
	notAnnounced
	ownerLeft
	twoLeads
	leadMissing
	noLead
	circle
	tooLong
)

// String is the reason as one sentence; "": somebody has authority.
func (n Nobody) String() string {
	at := nostr.Npub(n.at)
	switch n.kind {
	case notAnnounced:
		return "nobody has authority: there is no announcement by " + at
	case ownerLeft:
		return "nobody has authority: the owner " + at + " has left"
	case twoLeads:
		return "nobody has authority: the announcement of " + at + " names two leads"
	case leadMissing:
		return "nobody has authority: the announcement of the lead " + at + " is missing"
	case noLead:
		return "nobody has authority: " + nostr.Npub(n.before) + " names " + at + " as lead, who names no lead"
	case circle:
		return "nobody has authority: the leads form a circle that " + nostr.Npub(n.before) + " closes"
	case tooLong:
		return "nobody has authority: the path of leads is too long"
	}
	return ""
}

// Advice is what would give somebody authority; "": somebody has it.
func (n Nobody) Advice() string {
	at := nostr.Npub(n.at)
	switch n.kind {
	case notAnnounced, leadMissing:
		return at + " must publish an announcement of this identifier"
	case ownerLeft:
		return at + " must publish an announcement of this identifier in which the own role is active"
	case twoLeads:
		return at + " must publish an announcement of this identifier that names one lead"
	case noLead:
		return at + " must publish an announcement of this identifier with itself as lead (M)"
	case circle, tooLong:
		return "one of the leads must publish an announcement of this identifier with itself as lead (M)"
	}
	return ""
}

// Why says in one sentence why a key does not speak for a coordinate, and what would change that;
// both are "" where it does.
func Why(all Announcements, owner, key string) (reason, advice string) {
	w := walk{all: all}
	g := w.group(owner)
	if g.Root == "" {
		return g.Nobody.String(), g.Nobody.Advice()
	}
	if g.Has(key) {
		return "", ""
	}
	npub, a := nostr.Npub(key), all.By(key)
	lister := ""
	for _, confirmed := range g.Confirmed {
		if by := all.By(confirmed); by != nil && by.Lists(key) {
			lister = confirmed
			break
		}
	}
	switch {
	case a != nil && !a.Active:
		return npub + " has left", npub + " must publish an announcement of this identifier in which the own role is active"
	case lister == "":
		return npub + " is not listed by a confirmed maintainer",
			fmt.Sprintf("%s must publish an announcement of this identifier that lists %s", nostr.Npub(g.Root), npub)
	case len(g.Confirmed) == MaxConfirmed || w.looks > MaxLooks:
		return fmt.Sprintf("%s is listed, but there are too many maintainers: the first %d count", npub, MaxConfirmed), ""
	}
	return npub + " is invited but has not accepted yet",
		fmt.Sprintf("%s must publish an announcement of this identifier that lists %s", npub, nostr.Npub(lister))
}
