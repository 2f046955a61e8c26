package repostate

import (
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

// Reasons for which the hosting of a repository has ended.
const (
	Deleted  = "deleted"  // the owner has asked for the deletion of the announcement
	Vanished = "vanished" // the owner has asked to vanish (NIP-62)
	Banned   = "banned"   // an operator has banned it, and wants its data removed
	Moved    = "moved"    // the owner's newest announcement does not list us
	Expired  = "expired"  // the time of the announcement is over (NIP-40)
)

// EndingOf reads why a repository is not hosted any more from the last announcement of it that was
// ever accepted (nil: none), from how its author has taken it away ([Deleted], [Vanished]; "": not
// so), and from whether its time is over; "": the log does not say that its hosting has ended. Then
// nothing is ever removed: a log may be lost, or lie before the repositories' time, and what it
// says may come back. isHere says whether an announcement is of a repository that is here as long
// as it stands. One that lists a domain of earlier is: the service was moved, not the repository.
// So is one that is archived, wherever it moves.
func EndingOf(ref nostr.RepoRef, isHere func(*nostr.Announcement) bool, last *nostr.Event, taken string,
	expired bool) (reason string) {
	if last == nil {
		return ""
	}
	a, err := nostr.ParseAnnouncement(last)
	switch {
	case err != nil || a.Ref != ref:
		return ""
	case taken != "":
		return taken
	case !isHere(a):
		return Moved
	case expired:
		return Expired
	}
	return "" // the reason is not known
}

// DeletionsOf finds the accepted requests by its author that delete an announcement or a state: they
// name its id, or its address and are as new (NIP-09).
func DeletionsOf(ev *nostr.Event) []nostr.Filter {
	by := nostr.Filter{Kinds: []int{nostr.KindDeletion}, Authors: []string{ev.PubKey}, Limit: 1}
	byID, byAddress := by, by
	byID.Tags = nostr.TagMap{"e": {ev.ID}}
	address, _ := nostr.AddressOf(ev)
	byAddress.Tags = nostr.TagMap{"a": {address.String()}}
	byAddress.Since = &ev.CreatedAt
	return []nostr.Filter{byID, byAddress}
}

// KeptUntil returns what must be noted of the hosting of a repository with git data, which has
// ended as why says (nil: not that the log knows of), and until when it is kept (zero: without an
// end). noted is what is noted in its folder, or nil. A note of another ending is none: the owner
// has come back and gone again while no worker ran. What an operator keeps is kept, also if its
// owner announces it elsewhere.
func KeptUntil(why, noted *repository.Ended, grace time.Duration, now time.Time) (note *repository.Ended,
	until time.Time) {
	switch {
	case why == nil:
		return nil, time.Time{}
	case noted != nil && noted.Kept:
		return noted, time.Time{}
	case noted == nil || noted.Announcement != why.Announcement:
		return &repository.Ended{Announcement: why.Announcement, Reason: why.Reason, Since: now.UTC()}, now.Add(grace)
	}
	return noted, noted.Since.Add(grace)
}
