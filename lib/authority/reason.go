package authority

import (
	"fmt"

	"tendril.dev/lib/nostr"
)

// NoAuthority is why no one has authority over a coordinate. The zero value: some key has.
type NoAuthority struct {
	cause  cause
	at     string // whose announcement is the reason
	before string // who names that key as lead
}

type cause int

const (
	authority cause = iota
	notAnnounced
	ownerLeft
	twoLeads
	leadMissing
	noLead
	circle
	tooLong
)

// String is the reason as one sentence; "": there is authority.
func (n NoAuthority) String() string {
	at := nostr.Npub(n.at)
	switch n.cause {
	case notAnnounced:
		return "no one has authority: there is no announcement by " + at
	case ownerLeft:
		return "no one has authority: the owner " + at + " has left"
	case twoLeads:
		return "no one has authority: the announcement of " + at + " names two leads"
	case leadMissing:
		return "no one has authority: the announcement of the lead " + at + " is missing"
	case noLead:
		return "no one has authority: " + nostr.Npub(n.before) + " names " + at + " as lead, who names no lead"
	case circle:
		return "no one has authority: the leads form a circle that " + nostr.Npub(n.before) + " closes"
	case tooLong:
		return "no one has authority: the path of leads is too long"
	}
	return ""
}

// Advice is what would give authority; "": there is some.
func (n NoAuthority) Advice() string {
	at := nostr.Npub(n.at)
	switch n.cause {
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
		return g.NoAuthority.String(), g.NoAuthority.Advice()
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
