package nostr

// MaintainerSet is everyone who speaks for the owner's repository: the owner, whom the owner's
// announcement names as maintainers, whom their announcements name, and so on, without loops. It is
// empty when the owner has announced nothing.
//
// announcements are those of one identifier, by any owners; of two by the same owner the one that
// replaces the other counts.
func MaintainerSet(owner string, announcements []*Announcement) map[string]bool {
	latest := make(map[string]*Announcement, len(announcements))
	for _, a := range announcements {
		if have := latest[a.Ref.PubKey]; have == nil || Replaces(a.Event, have.Event) {
			latest[a.Ref.PubKey] = a
		}
	}
	set := make(map[string]bool)
	if latest[owner] == nil {
		return set
	}
	for queue := []string{owner}; len(queue) > 0; {
		key := queue[0]
		queue = queue[1:]
		if a := latest[key]; a != nil && !set[key] {
			queue = append(queue, a.Maintainers...)
		}
		set[key] = true
	}
	return set
}

// Replaces reports whether a takes the place of b where both are events of one address: the newer
// one does, at the same second the one with the lower id (NIP-01). An event does not replace
// itself.
func Replaces(a, b *Event) bool {
	switch {
	case a == nil || b == nil:
		return b == nil && a != nil
	case a.CreatedAt != b.CreatedAt:
		return a.CreatedAt > b.CreatedAt
	}
	return a.ID < b.ID
}
