package history

import (
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// perFilter is how many references, ids or authors one filter names. A wide filter names more; the
// bytes are what strfry takes.
const perFilter, perWide, mostWide = 100, 1000, 65_000

// Group is the filters of one chunk of references or ids. They go in one REQ.
type Group []nostr.Filter

// Groups are the filters for a set, always in the same order.
func Groups(s Set) []Group { return groups(s, perFilter, mostWide) }

// Wide are the same filters with as many values in each as a session of NIP-77 takes, and not many
// more bytes than given.
func Wide(s Set, bytes int) []Group { return groups(s, perWide, min(bytes, mostWide)) }

func groups(s Set, most, bytes int) (all []Group) {
	if s.First { // announcements, states and user grasp lists of anyone
		all = append(all, Group{{Kinds: []int{nostr.KindAnnouncement, nostr.KindState, nostr.KindUserGraspList}}})
	}
	for _, chunk := range chunks(s.Full, most, bytes) {
		all = append(all, tagged(chunk, "a", "A", "q"))
	}
	for _, f := range states(s.State) {
		all = append(all, Group{f})
	}
	for _, chunk := range chunks(s.Roots, most, bytes) {
		all = append(all, tagged(chunk, "e", "E", "q"))
	}
	return all
}

func chunks(values []string, most, bytes int) (all [][]string) {
	begin, size := 0, 0
	for i, v := range values {
		if i > begin && (i-begin == most || size+len(v) > bytes) {
			all = append(all, values[begin:i:i])
			begin, size = i, 0
		}
		size += len(v)
	}
	if begin < len(values) {
		all = append(all, values[begin:])
	}
	return all
}

// tagged returns one filter for each tag name.
func tagged(values []string, names ...string) (g Group) {
	for _, name := range names {
		g = append(g, nostr.Filter{Tags: nostr.TagMap{name: values}})
	}
	return g
}

// Narrow cuts those filters of a wide group that are chosen into groups as they go in one REQ.
func (g Group) Narrow(chosen []bool) (all []Group) {
	if len(g[0].Kinds) > 0 {
		return []Group{g}
	}
	var names []string
	var values []string
	for n, f := range g {
		for name := range f.Tags {
			if values = f.Tags[name]; chosen[n] {
				names = append(names, name)
			}
		}
	}
	for chunk := range slices.Chunk(values, perFilter) {
		if len(names) > 0 {
			all = append(all, tagged(chunk, names...))
		}
	}
	return all
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

// states returns filters for each hundred state-only repositories: their identifiers, by anyone who
// maintains one of them, a hundred of these in each. What this lets in too much is ingest's to
// refuse.
func states(wanted map[string][]string) (filters []nostr.Filter) {
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

// Bytes is about how long filters are as JSON.
func (g Group) Bytes() (n int) {
	for _, f := range g {
		n += 100 + 67*len(f.Authors)
		for _, values := range f.Tags {
			for _, v := range values {
				n += len(v) + 3
			}
		}
	}
	return n
}

// Matches reports whether an event is what one of the filters asks for.
func (g Group) Matches(ev *nostr.Event) bool {
	return slices.ContainsFunc(g, func(f nostr.Filter) bool { return f.Matches(ev) })
}
