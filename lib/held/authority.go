package held

import (
	"iter"
	"slices"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Source finds the announcements of one identifier. Anybody may announce an identifier, so that
// there can be thousands: no question reads all of them.
type Source interface {
	// By returns the announcements of an author.
	By(author string) []*Entry
	// LedBy yields the announcements that name a key as lead. It yields nil for one that it has looked
	// at in vain, so that this counts too.
	LedBy(lead string) iter.Seq[*Entry]
	// Any reports whether there is one whose id is not among these.
	Any(without map[string]bool) bool
	// Lists reports whether one of another author lists a key.
	Lists(key string) bool
}

// Announced are the announcements of one identifier that a directory holds.
func (d *Directory) Announced(identifier string) Source { return announced{d, identifier} }

type announced struct {
	directory  *Directory
	identifier string
}

// By implements [Source], as LedBy does.
func (a announced) By(author string) []*Entry {
	return a.directory.At(nostr.RepoRef{PubKey: author, Identifier: a.identifier}.Address())
}

func (a announced) LedBy(lead string) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, e := range a.directory.led[nostr.RepoRef{PubKey: lead, Identifier: a.identifier}] {
			if !yield(e) {
				return
			}
		}
	}
}

func (a announced) Any(without map[string]bool) bool {
	return slices.ContainsFunc(a.directory.Announcements(a.identifier), func(e *Entry) bool { return !without[e.Event.ID] })
}

func (a announced) Lists(key string) bool {
	return slices.ContainsFunc(a.directory.naming[nostr.RepoRef{PubKey: key, Identifier: a.identifier}],
		func(e *Entry) bool {
			return e.Event.PubKey != key
		})
}

// Announcements are the announcements of one identifier that count for who speaks for a repository:
// of each author the newest. A silent one counts only for the state event that would revive it.
type Announcements struct {
	In         []Source
	WithSilent bool
}

var _ authority.Announcements = Announcements{}

// By implements [authority.Announcements], as LedBy does.
func (all Announcements) By(author string) *nostr.Announcement {
	if e := all.newest(author); e != nil {
		return e.Announcement
	}
	return nil
}

func (all Announcements) newest(author string) (newest *Entry) {
	for _, source := range all.In {
		for _, e := range source.By(author) {
			counts := e.Announcement != nil && (e.Phase != proto.PhaseSilent || all.WithSilent)
			if counts && (newest == nil || nostr.Replaces(e.Event, newest.Event)) {
				newest = e
			}
		}
	}
	return newest
}

func (all Announcements) LedBy(lead string) iter.Seq[*nostr.Announcement] {
	return func(yield func(*nostr.Announcement) bool) {
		for _, source := range all.In {
			for e := range source.LedBy(lead) {
				var counts *nostr.Announcement
				if e != nil {
					if newest := all.newest(e.Event.PubKey); newest != nil && newest.Event.ID == e.Event.ID {
						counts = newest.Announcement
					}
				}
				if !yield(counts) {
					return
				}
			}
		}
	}
}
