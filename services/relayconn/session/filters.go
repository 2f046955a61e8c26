package session

import (
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
		all = append(all, Group{{Kinds: nostr.KindsThat(func(k nostr.Kind) bool { return k.Announced })}})
	}
	all = append(all, tagged(s.Full, most, bytes, "a", "A", "q")...)
	for _, f := range states(s.State) {
		all = append(all, Group{f})
	}
	return append(all, tagged(s.Roots, most, bytes, "e", "E", "q")...)
}

// tagged returns groups of one filter for each tag name.
func tagged(values []string, most, bytes int, names ...string) (all []Group) {
	for begin := 0; begin < len(values); {
		end, size := begin, 0
		for end < len(values) && (end == begin || end-begin < most && size+len(values[end]) <= bytes) {
			size += len(values[end])
			end++
		}
		var g Group
		for _, name := range names {
			g = append(g, nostr.Filter{Tags: nostr.TagMap{name: values[begin:end:end]}})
		}
		all = append(all, g)
		begin = end
	}
	return all
}

// Narrow cuts those filters of a wide group that are chosen into groups as they go in one REQ.
func (g Group) Narrow(chosen []bool) (all []Group) {
	for n, f := range g {
		for i, part := range narrow(f) {
			if i == len(all) {
				all = append(all, nil)
			}
			if chosen[n] {
				all[i] = append(all[i], part)
			}
		}
	}
	return slices.DeleteFunc(all, func(g Group) bool { return len(g) == 0 })
}

func narrow(f nostr.Filter) (parts Group) {
	if len(f.Kinds) > 0 {
		return Group{f}
	}
	for name, values := range f.Tags {
		for chunk := range slices.Chunk(values, perFilter) {
			parts = append(parts, nostr.Filter{Tags: nostr.TagMap{name: chunk}})
		}
	}
	return parts
}

// states returns filters for each hundred state-only repositories: their identifiers, by anyone who
// maintains one of them, a hundred of these in each. What this lets in too much is ingest's to
// refuse.
func states(wanted []string) (filters []nostr.Filter) {
	for chunk := range slices.Chunk(wanted, perFilter) {
		var identifiers, authors []string
		for _, item := range chunk {
			maintainers, reference, _ := strings.Cut(item, "\n")
			owner, identifier, _ := strings.Cut(strings.TrimPrefix(reference, "30617:"), ":")
			identifiers, authors = append(identifiers, identifier), append(authors, owner)
			authors = append(authors, strings.Fields(maintainers)...)
		}
		tags := nostr.TagMap{"d": unique(identifiers)}
		for some := range slices.Chunk(unique(authors), perFilter) {
			filters = append(filters, nostr.Filter{Kinds: []int{nostr.KindState}, Authors: some, Tags: tags})
		}
	}
	return filters
}

func unique(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

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

// countFilters counts the filters of groups.
func countFilters(groups []Group) (n int) {
	for _, g := range groups {
		n += len(g)
	}
	return n
}

// Matches reports whether an event is what one of the filters asks for.
func (g Group) Matches(ev *nostr.Event) bool {
	return slices.ContainsFunc(g, func(f nostr.Filter) bool { return f.Matches(ev) })
}
