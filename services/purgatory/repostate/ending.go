package repostate

import (
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

// Reasons for which the hosting of a repository has ended.
const (
	Deleted = "deleted" // the owner has asked for the deletion of the announcement
	Moved   = "moved"   // the owner's newest announcement does not list us
)

// Ending is how the hosting of a repository has ended, as the log tells it. The zero value: the log
// does not say that it has. Then nothing is ever removed: a log may be lost, or lie before the
// repositories' time, and what it says may come back.
type Ending struct {
	Announcement string // id of the owner's last announcement
	Reason       string
}

// EndingOf reads how the hosting of a repository that is not hosted has ended from the last
// announcement of it that was ever accepted (nil: none), and from whether its author has asked for
// its deletion. isHere says whether an announcement is of a repository that is here as long as it
// stands. One that lists a domain of earlier is: the service was moved, not the repository. So is
// one that is archived, wherever it moves.
func EndingOf(ref nostr.RepoRef, isHere func(*nostr.Announcement) bool, last *nostr.Event, deleted bool) Ending {
	if last == nil {
		return Ending{}
	}
	a, err := nostr.ParseAnnouncement(last)
	switch {
	case err != nil || a.Ref != ref:
		return Ending{}
	case deleted:
		return Ending{Announcement: last.ID, Reason: Deleted}
	case !isHere(a):
		return Ending{Announcement: last.ID, Reason: Moved}
	}
	return Ending{} // it has expired, or the reason is not known
}

// DeletionsOf finds the accepted requests by its author that delete an announcement: they name its
// id, or its address and are as new (NIP-09).
func DeletionsOf(announcement *nostr.Event) []nostr.Filter {
	by := nostr.Filter{Kinds: []int{nostr.KindDeletion}, Authors: []string{announcement.PubKey}, Limit: 1}
	byID, byAddress := by, by
	byID.Tags = nostr.TagMap{"e": {announcement.ID}}
	ref := nostr.RepoRef{PubKey: announcement.PubKey, Identifier: announcement.Tags.GetD()}
	byAddress.Tags = nostr.TagMap{"a": {ref.String()}}
	byAddress.Since = &announcement.CreatedAt
	return []nostr.Filter{byID, byAddress}
}

// Step is what must be done about a repository that is not hosted.
type Step int

// The steps.
const (
	Keep    Step = iota // without an end
	NoteEnd             // that the hosting has ended, now
	Wait                // until the grace period is over
	Remove              // it is over
)

// DecideEnding returns the next step for a repository with git data that is not hosted, and up to
// when it is kept, where that has an end. note is what is noted in its folder; nil: nothing. A note
// of another ending is none: the owner has come back and gone again while no worker ran. What an
// operator keeps is kept, also if its owner announces it elsewhere.
func DecideEnding(ending Ending, note *repository.Ended, grace time.Duration, now time.Time) (step Step, until time.Time) {
	switch {
	case ending == Ending{} || note != nil && note.Kept:
		return Keep, time.Time{}
	case note == nil || note.Announcement != ending.Announcement:
		return NoteEnd, now.Add(grace)
	}
	if until = note.Since.Add(grace); now.Before(until) {
		return Wait, until
	}
	return Remove, until
}
