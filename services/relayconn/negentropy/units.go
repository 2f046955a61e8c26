package negentropy

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// Bounds of the filter of one session: values, and bytes of them. strfry takes less than 64 KiB of
// values in a filter, and messages of 128 KiB.
const (
	mostValues = 1000
	mostBytes  = 65_000
	// besides is what a message has beside the values of a filter: quotes, and the first message of
	// the session.
	besides = 8192
)

// Unit is several groups of filters, each of which would be one REQ, that are reconciled together:
// the first filters of all groups in one session, the second ones in another, and so on. A relay
// may be asked by more values in a session than in a REQ, and fewer sessions have fewer messages.
type Unit struct{ Groups [][]nostr.Filter }

// Units puts groups together that follow each other and ask by the same tags and by nothing else.
// All others stay alone. A relay takes messages of so many bytes.
func Units(groups [][]nostr.Filter, message int) (units []Unit) {
	mostBytes := min(mostBytes, message-besides)
	begin, values, bytes := 0, 0, 0
	for i, group := range groups {
		n, size := measure(group)
		if i > begin && (!alike(groups[begin], group) || values+n > mostValues || bytes+size > mostBytes) {
			units = append(units, Unit{groups[begin:i:i]})
			begin, values, bytes = i, 0, 0
		}
		values, bytes = values+n, bytes+size
	}
	if begin < len(groups) {
		units = append(units, Unit{groups[begin:]})
	}
	return units
}

// Filters are the filters of the sessions, as many as each group has.
func (u Unit) Filters() []nostr.Filter {
	if len(u.Groups) == 1 {
		return u.Groups[0]
	}
	filters := make([]nostr.Filter, len(u.Groups[0]))
	for i := range filters {
		tag, _ := byTag(u.Groups[0][i])
		var all []string
		for _, group := range u.Groups {
			all = append(all, group[i].Tags[tag]...)
		}
		filters[i].Tags = nostr.TagMap{tag: all}
	}
	return filters
}

// measure returns how many values the largest filter of a group by tags has, and their bytes.
func measure(group []nostr.Filter) (values, bytes int) {
	for _, f := range group {
		_, of := byTag(f)
		size := 0
		for _, v := range of {
			size += len(v)
		}
		values, bytes = max(values, len(of)), max(bytes, size)
	}
	return values, bytes
}

// alike reports whether two groups ask by the same tags in the same order, and by nothing else.
func alike(a, b []nostr.Filter) bool {
	return slices.EqualFunc(a, b, func(f, g nostr.Filter) bool {
		tag, _ := byTag(f)
		other, _ := byTag(g)
		return tag != "" && tag == other
	})
}

// byTag returns the tag of a filter that is by one tag alone; "": it is not.
func byTag(f nostr.Filter) (tag string, values []string) {
	if len(f.Tags) != 1 || f.IDs != nil || f.Kinds != nil || f.Authors != nil || f.Since != nil || f.Until != nil || f.Search != "" {
		return "", nil
	}
	for tag, values = range f.Tags {
		return tag, values
	}
	return "", nil
}
