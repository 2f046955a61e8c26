package eventdb

import (
	"slices"

	"tendril.dev/lib/nostr"
)

// matcher checks of a filter what only the event itself tells: its author and its tags. The values
// are sets because strangers write the filter and the tags, both as long as they may be.
type matcher struct {
	authors map[string]bool // nil: every author
	tags    map[string]map[string]bool
}

func newMatcher(f nostr.Filter) *matcher {
	m := &matcher{tags: make(map[string]map[string]bool, len(f.Tags))}
	if f.Authors != nil {
		m.authors = setOf(f.Authors)
	}
	for name, values := range f.Tags {
		if values != nil {
			m.tags[name] = setOf(values)
		}
	}
	return m
}

// matches reports whether one of the authors wrote the event, and a tag of every name has one of
// its values (NIP-01).
func (m *matcher) matches(ev *nostr.Event) bool {
	if m.authors != nil && !m.authors[ev.PubKey] {
		return false
	}
	for name, values := range m.tags {
		if !slices.ContainsFunc(ev.Tags, func(tag nostr.Tag) bool { return len(tag) >= 2 && tag[0] == name && values[tag[1]] }) {
			return false
		}
	}
	return true
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}
