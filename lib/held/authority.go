package held

import (
	"iter"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Announcements are those of one identifier that count for authority: of each author the newest, in
// some directories of accepted and held ones. A silent announcement counts only for the state event
// that revives it.
type Announcements struct {
	Identifier string
	In         []*Directory
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
	address := nostr.RepoRef{PubKey: author, Identifier: all.Identifier}.Address()
	for _, directory := range all.In {
		for _, e := range directory.byAddress[address] {
			counts := e.Announcement != nil && (e.Phase != proto.PhaseSilent || all.WithSilent)
			if counts && (newest == nil || nostr.Replaces(e.Event, newest.Event)) {
				newest = e
			}
		}
	}
	return newest
}

// LedBy passes over announcements that are not the newest of their author.
func (all Announcements) LedBy(lead string) iter.Seq[*nostr.Announcement] {
	name := nostr.RepoRef{PubKey: lead, Identifier: all.Identifier}
	return func(yield func(*nostr.Announcement) bool) {
		for _, directory := range all.In {
			for _, e := range directory.led[name] {
				if all.newest(e.Event.PubKey) == e && !yield(e.Announcement) {
					return
				}
			}
		}
	}
}
