package eventdb

import "tendril.dev/lib/nostr"

// matcher checks of a filter what only the event itself tells: its author and its tags. It takes
// one look at each tag, however many names and values the filter lists, because strangers write
// both.
type matcher struct {
	authors map[string]bool // nil: anybody
	tags    map[string]*wanted
	checked int // events so far
}

// wanted are the values that a tag of one name may have.
type wanted struct {
	values map[string]bool
	found  int // the last event that has one of them
}

func newMatcher(f nostr.Filter) *matcher {
	m := &matcher{tags: make(map[string]*wanted, len(f.Tags))}
	if f.Authors != nil {
		m.authors = setOf(f.Authors)
	}
	for name, values := range f.Tags {
		if values != nil {
			m.tags[name] = &wanted{values: setOf(values)}
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
	m.checked++
	missing := len(m.tags)
	for _, tag := range ev.Tags {
		if missing == 0 {
			break
		}
		if len(tag) < 2 {
			continue
		}
		if w := m.tags[tag[0]]; w != nil && w.found != m.checked && w.values[tag[1]] {
			w.found = m.checked
			missing--
		}
	}
	return missing == 0
}

func setOf(list []string) map[string]bool {
	set := make(map[string]bool, len(list))
	for _, s := range list {
		set[s] = true
	}
	return set
}
