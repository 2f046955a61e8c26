package repostate

import (
	"slices"
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

// DeletionsOf finds the accepted deletion requests that name an announcement, by its id or by its
// address (NIP-09).
func DeletionsOf(announcement *nostr.Event) []nostr.Filter {
	by := nostr.Filter{Kinds: []int{nostr.KindDeletion}, Authors: []string{announcement.PubKey}, Limit: 1}
	byID, byAddress := by, by
	byID.Tags = nostr.TagMap{"e": {announcement.ID}}
	byAddress.Tags = nostr.TagMap{"a": {addressOf(announcement)}}
	byAddress.Since = &announcement.CreatedAt
	return []nostr.Filter{byID, byAddress}
}

// Deletes reports whether a deletion request deletes an announcement: its author has signed it, and
// it names the id, or the address and is as new (NIP-09).
func Deletes(request, announcement *nostr.Event) bool {
	if request.Kind != nostr.KindDeletion || request.PubKey != announcement.PubKey {
		return false
	}
	address := addressOf(announcement)
	return slices.ContainsFunc(request.Tags, func(tag nostr.Tag) bool {
		switch {
		case len(tag) < 2:
			return false
		case tag[0] == "e":
			return tag[1] == announcement.ID
		}
		return tag[0] == "a" && tag[1] == address && request.CreatedAt >= announcement.CreatedAt
	})
}

func addressOf(announcement *nostr.Event) string {
	return nostr.RepoRef{PubKey: announcement.PubKey, Identifier: announcement.Tags.GetD()}.String()
}

// Step is what must be done about a repository that is not hosted.
type Step int

// The steps.
const (
	Keep      Step = iota // without an end
	NoteEnd               // that the hosting has ended, now
	CountTime             // that has passed, and note it
	Wait                  // until the grace period is over
	Remove                // it is over
)

// Time is counted in pieces, and each is noted, because clocks are set wrong and set right again,
// and backups are restored that are weeks old.
const (
	// CountEvery is how often the time that has passed is counted.
	CountEvery = 12 * time.Hour
	// mostUnseen is what counts at most of the time since it was counted last. Whatever else has
	// passed is a clock that jumped, or time in which no service ran that an owner could come back to.
	mostUnseen = 24 * time.Hour
)

// DecideEnding returns the next step for a repository with git data that is not hosted, and up to
// when it is kept, where that has an end. note is what is noted in its folder; nil: nothing. A note
// of another ending is none: the owner has come back and gone again while no worker ran. What an
// operator keeps is kept whatever its owner does elsewhere.
func DecideEnding(ending Ending, note *repository.Ended, grace time.Duration, now time.Time) (step Step, until time.Time) {
	switch {
	case ending == Ending{}:
		return Keep, time.Time{}
	case note != nil && note.Kept:
		return Keep, time.Time{}
	case note == nil || note.Announcement != ending.Announcement:
		return NoteEnd, now.Add(grace)
	}
	until = KeptUntil(*note, grace, now)
	switch passed := now.Sub(seen(*note)); {
	case !now.Before(until):
		return Remove, until
	case passed < 0 || passed >= CountEvery:
		return CountTime, until
	}
	return Wait, until
}

// KeptUntil is when a repository with that note has been kept for so long as grace says, if time is
// counted without a gap from now on.
func KeptUntil(note repository.Ended, grace time.Duration, now time.Time) time.Time {
	return now.Add(grace - counted(note, now))
}

// Counting is a note in which the time is counted up to now.
func Counting(note repository.Ended, now time.Time) repository.Ended {
	note.Counted, note.Seen = counted(note, now), now.UTC()
	return note
}

func counted(note repository.Ended, now time.Time) time.Duration {
	return note.Counted + min(max(now.Sub(seen(note)), 0), mostUnseen)
}

// seen is up to when the time of a note is counted.
func seen(note repository.Ended) time.Time {
	if note.Seen.IsZero() {
		return note.Since
	}
	return note.Seen
}
