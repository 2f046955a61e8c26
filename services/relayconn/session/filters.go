package session

import (
	"slices"

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
	if s.First { // announcements and user grasp lists of anyone
		all = append(all, Group{{Kinds: nostr.KindsThat(func(k nostr.Kind) bool { return k.Announced })}})
	}
	all = append(all, tagged(s.Full, most, bytes, "a", "A", "q")...)
	for _, g := range tagged(s.States, most, bytes, "d") {
		g[0].Kinds = []int{nostr.KindState}
		all = append(all, g)
	}
	for some := range slices.Chunk(s.People, perFilter) {
		all = append(all, Group{{Kinds: []int{nostr.KindProfile, nostr.KindRelayList}, Authors: some}})
	}
	all = append(all, tagged(s.Roots, most, bytes, "e", "E", "q")...)
	return append(all, tagged(s.Replies, most, bytes, "e", "E", "q")...)
}

// Live are the filters of layers 2 and 3 of a set in the order in which a relay with little room is
// asked for them.
func Live(s Set) (all []Group) {
	groups := Groups(Set{Full: s.Full, States: s.States, Roots: s.Roots})
	for rank := range layer4 {
		for _, g := range groups {
			for _, f := range g {
				if rankOf(f) == rank {
					all = append(all, Group{f})
				}
			}
		}
	}
	return all
}

// The ranks of live filters, the most wanted first: what names a repository or a root event
// directly, states, what names the root event of its thread, the rest, and layer 4.
const layer4 = 4

func rankOf(f nostr.Filter) int {
	for rank, names := range [layer4 - 1]string{"ae", "d", "E"} {
		for _, name := range names {
			if len(f.Tags[string(name)]) > 0 {
				return rank
			}
		}
	}
	return layer4 - 1
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
	if len(f.Tags) == 0 {
		return Group{f}
	}
	for name, values := range f.Tags {
		for chunk := range slices.Chunk(values, perFilter) {
			part := f
			part.Tags = nostr.TagMap{name: chunk}
			parts = append(parts, part)
		}
	}
	return parts
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
