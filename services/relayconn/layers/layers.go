// Package layers builds the filters of the three layers that a relay is asked (spec/sync.md, What is asked).
package layers

import (
	"maps"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/target"
	"tendril.dev/services/relayconn/items"
)

// perFilter is how many references or ids one filter names.
const perFilter = 100

// One is layer 1: announcements, states and user grasp lists, whoever's.
func One() []nostr.Filter {
	return []nostr.Filter{{Kinds: []int{nip34.KindAnnouncement, nip34.KindState, nip34.KindUserGraspList}}}
}

// TwoAndThree are the filters for a set of items, in an order that does not depend on chance.
func TwoAndThree(s items.Set) []nostr.Filter {
	filters := tagged(slices.Sorted(maps.Keys(s.Full)), "a", "A", "q")
	filters = append(filters, states(s.State)...)
	ids := slices.SortedFunc(maps.Keys(s.Roots), func(a, b target.ID) int { return slices.Compare(a[:], b[:]) })
	hex := make([]string, len(ids))
	for i, id := range ids {
		hex[i] = id.String()
	}
	return append(filters, tagged(hex, "e", "E", "q")...)
}

// tagged gives one filter for each tag name and hundred values.
func tagged(values []string, names ...string) []nostr.Filter {
	var filters []nostr.Filter
	for chunk := range slices.Chunk(values, perFilter) {
		for _, name := range names {
			filters = append(filters, nostr.Filter{Tags: nostr.TagMap{name: chunk}})
		}
	}
	return filters
}

// states gives one filter for each hundred state-only repositories: their identifiers, by anyone who maintains one of them. What this
// lets in too much is ingest's to refuse.
func states(wanted map[string][]string) []nostr.Filter {
	var filters []nostr.Filter
	for chunk := range slices.Chunk(slices.Sorted(maps.Keys(wanted)), perFilter) {
		identifiers, authors := map[string]bool{}, map[string]bool{}
		for _, ref := range chunk {
			if parts := strings.SplitN(ref, ":", 3); len(parts) == 3 {
				identifiers[parts[2]] = true
			}
			for _, a := range wanted[ref] {
				authors[a] = true
			}
		}
		filters = append(filters, nostr.Filter{
			Kinds:   []int{nip34.KindState},
			Authors: slices.Sorted(maps.Keys(authors)),
			Tags:    nostr.TagMap{"d": slices.Sorted(maps.Keys(identifiers))},
		})
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
