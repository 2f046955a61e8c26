package history

import (
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// perFilter is how many references, ids or authors one filter names.
const perFilter = 100

// Layer1 asks for announcements, states and user grasp lists of anyone.
func Layer1() []nostr.Filter {
	return []nostr.Filter{{Kinds: []int{nostr.KindAnnouncement, nostr.KindState, nostr.KindUserGraspList}}}
}

// FiltersOf are the filters of layers 2 and 3 for a set, always in the same order.
func FiltersOf(s Set) []nostr.Filter {
	var filters []nostr.Filter
	for chunk := range slices.Chunk(s.Full, perFilter) {
		filters = append(filters, tagged(chunk, "a", "A", "q")...)
	}
	filters = append(filters, states(s.State)...)
	for chunk := range slices.Chunk(s.Roots, perFilter) {
		filters = append(filters, tagged(chunk, "e", "E", "q")...)
	}
	return filters
}

// Fewest is how many filters ask for everything in the sets together, which have nothing in common;
// many authors may take more.
func Fewest(sets ...Set) int {
	var full, state, roots int
	for _, s := range sets {
		full, state, roots = full+len(s.Full), state+len(s.State), roots+len(s.Roots)
	}
	chunks := func(n int) int { return (n + perFilter - 1) / perFilter }
	return 3*chunks(full) + chunks(state) + 3*chunks(roots)
}

// tagged returns one filter for each tag name.
func tagged(values []string, names ...string) (filters []nostr.Filter) {
	for _, name := range names {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{name: values}})
	}
	return filters
}

// Groups puts filters together that ask for the same hundred references or ids in different tags.
// Those go in one REQ. They must follow each other, as they do here; all others stay alone.
func Groups(filters []nostr.Filter) (groups [][]nostr.Filter) {
	begin := 0
	for i := 1; i <= len(filters); i++ {
		if i == len(filters) || !joins(filters[i], filters[begin:i]) {
			groups = append(groups, filters[begin:i:i])
			begin = i
		}
	}
	return groups
}

// joins reports whether a filter is by one tag alone, as those of a group are, with the same values
// in a tag that none of them has.
func joins(f nostr.Filter, group []nostr.Filter) bool {
	name, values, ok := onlyTag(f)
	return ok && !slices.ContainsFunc(group, func(g nostr.Filter) bool {
		other, others, ok := onlyTag(g)
		return !ok || name == other || !slices.Equal(values, others)
	})
}

func onlyTag(f nostr.Filter) (name string, values []string, ok bool) {
	if len(f.Tags) != 1 || len(f.Kinds)+len(f.Authors)+len(f.IDs) > 0 {
		return "", nil, false
	}
	for name, values = range f.Tags {
	}
	return name, values, true
}

// states returns filters for each hundred state-only repositories: their identifiers, by anyone who
// maintains one of them, a hundred of these in each. What this lets in too much is ingest's to
// refuse.
func states(wanted map[string][]string) []nostr.Filter {
	var filters []nostr.Filter
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(wanted)), perFilter) {
		identifiers, authors := map[string]bool{}, map[string]bool{}
		for _, ref := range chunk {
			if parts := strings.SplitN(ref, ":", 3); len(parts) == 3 {
				authors[parts[1]], identifiers[parts[2]] = true, true
			}
			for _, a := range wanted[ref] {
				authors[a] = true
			}
		}
		tags := nostr.TagMap{"d": slices.Sorted(maps.Keys(identifiers))}
		for some := range slices.Chunk(slices.Sorted(maps.Keys(authors)), perFilter) {
			filters = append(filters, nostr.Filter{Kinds: []int{nostr.KindState}, Authors: some, Tags: tags})
		}
	}
	return filters
}

// Live makes filters ask for what comes from now on, whatever any clock says.
func Live(filters []nostr.Filter) []nostr.Filter {
	out := slices.Clone(filters)
	for i := range out {
		out[i].LimitZero = true
	}
	return out
}

// Stored makes live filters ask for what there is.
func Stored(live []nostr.Filter) []nostr.Filter {
	out := slices.Clone(live)
	for i := range out {
		out[i].LimitZero = false
	}
	return out
}

// Bytes is about how long a filter is as JSON.
func Bytes(f nostr.Filter) int {
	n := 100 + 67*len(f.Authors)
	for _, values := range f.Tags {
		for _, v := range values {
			n += len(v) + 3
		}
	}
	return n
}
