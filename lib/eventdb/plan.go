package eventdb

import (
	"bytes"
	"cmp"
	"slices"

	"tendril.dev/lib/nostr"
)

// plan says how a filter is answered: which parts of the index are walked, and what of the filter
// they leave to be checked.
type plan struct {
	empty bool
	ids   [][]byte // look these keys up; conditions is not used
	// conditions must all hold. Each is a list of ranges, of which one must have the event. If the
	// first has more than MaxMerged ranges it is the only one, otherwise all together have no more
	// than that.
	conditions [][][]byte
	kinds      []int // sorted; check the posting's kind, if not nil
	load       bool  // the rest of the filter needs the event itself
}

// planOf picks what to walk. Tags and authors are walked together, each leaping over what the
// others do not have; kinds are walked only if there is nothing else, because every posting tells
// its kind. A condition that is present and that no event can meet makes the plan empty.
func planOf(f nostr.Filter) plan {
	p := plan{empty: f.LimitZero || f.Search != "" || f.Limit < 0 || f.Since != nil && f.Until != nil &&
		*f.Since > *f.Until}
	if f.Kinds != nil {
		p.kinds = append([]int{}, f.Kinds...)
		slices.Sort(p.kinds)
	}
	var all [][][]byte
	for name, values := range f.Tags {
		switch {
		case values == nil:
		case isIndexedTag(name):
			all = append(all, rangesOf(values, func(value string) []byte { return appendTag(nil, name[0], value) }))
		default:
			p.load, p.empty = true, p.empty || len(values) == 0
		}
	}
	if f.Authors != nil {
		all = append(all, rangesOf(f.Authors, ofID(tableAuthor)))
	}
	if f.Kinds != nil && (len(all) == 0 || len(f.Kinds) == 0) {
		all = append(all, rangesOf(f.Kinds, func(kind int) []byte {
			if kind < 0 || kind > 0xffff {
				return nil
			}
			return appendKind(nil, uint16(kind))
		}))
	}
	if f.IDs != nil {
		p.ids = rangesOf(f.IDs, ofID(tableID))
		p.load = p.load || f.Authors != nil || len(f.Tags) > 0
		all = append(all, p.ids)
	}
	if len(all) == 0 {
		all = append(all, [][]byte{{tableEvent}})
	}
	p.empty = p.empty || slices.ContainsFunc(all, func(c [][]byte) bool { return len(c) == 0 })
	if !p.empty && p.ids == nil {
		p.choose(all)
	}
	return p
}

// choose takes the conditions with the fewest ranges, as many as may be open at once, and leaves
// the others to be checked.
func (p *plan) choose(all [][][]byte) {
	slices.SortFunc(all, func(a, b [][]byte) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), bytes.Compare(a[0], b[0]))
	})
	open := 0
	for i, c := range all {
		if open += len(c); i > 0 && open > MaxMerged {
			p.load = true
			return
		}
		p.conditions = append(p.conditions, c)
	}
}

// rangesOf makes the prefix of each value's range, in order and none twice. Values that no event
// has are left out: their prefix is nil.
func rangesOf[T any](values []T, prefix func(T) []byte) [][]byte {
	out := [][]byte{}
	for _, value := range values {
		if b := prefix(value); b != nil {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, bytes.Compare)
	return slices.CompactFunc(out, bytes.Equal)
}

// ofID makes the key of an id, or of a public key, in a table.
func ofID(table byte) func(string) []byte {
	return func(s string) []byte {
		value, err := parseID(s)
		if err != nil {
			return nil
		}
		return append([]byte{table}, value[:]...)
	}
}

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
		if !slices.ContainsFunc(ev.Tags, func(tag nostr.Tag) bool {
			return len(tag) >= 2 && tag[0] == name &&
				values[tag[1]]
		}) {
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
