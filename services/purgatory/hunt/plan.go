package hunt

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repostate"
)

// planned is what one search asks in an attempt.
type planned struct {
	want     repostate.Want
	requests []request
}

// planOf chooses the URLs of an attempt: those that the owner's people name first, then all others.
// Where there are too many, those that were chosen the longest time ago come first, so that each
// gets its turn. turns says when that was, next is the same with this attempt; nil: none is left
// out. left: some have never had their turn.
func planOf(identifier string, f Found, turns map[string]uint64, turn uint64) (plan []planned, next map[string]uint64,
	left bool) {
	most := min(maxURLs, max(1, maxRequests/max(1, len(f.Wants))))
	all := inTurn(f.Sources, turns)
	next = map[string]uint64{}
	for _, s := range all {
		next[s.URL] = turns[s.URL]
	}
	cut := false
	for _, w := range rotated(f.Wants, maxRequests)[:min(len(f.Wants), maxRequests)] {
		p := planned{want: w}
		near, others := inTurn(w.Near, turns), all
		for seen := map[string]bool{}; len(near)+len(others) > 0; {
			var s repostate.Source
			if len(others) == 0 || len(near) > 0 && turns[near[0].URL] <= turns[others[0].URL] {
				s, near = near[0], near[1:]
			} else {
				s, others = others[0], others[1:]
			}
			if seen[s.URL] {
				continue
			}
			if s.Here != (nostr.RepoRef{PubKey: w.Owner, Identifier: identifier}) {
				if len(p.requests) == most {
					cut = true
					break
				}
				p.requests = append(p.requests, newRequest(s))
			}
			seen[s.URL], next[s.URL] = true, turn
		}
		plan = append(plan, p)
	}
	if !cut {
		return plan, nil, false
	}
	for _, s := range all {
		left = left || next[s.URL] == 0
	}
	return plan, next, left
}

// inTurn is sources in order of when they were chosen.
func inTurn(sources []repostate.Source, turns map[string]uint64) []repostate.Source {
	return slices.SortedStableFunc(slices.Values(sources), func(a, b repostate.Source) int {
		return cmp.Compare(turns[a.URL], turns[b.URL])
	})
}

// rotated is a list that begins somewhere in its middle, if it is longer than most.
func rotated[T any](list []T, most int) []T {
	if len(list) <= most {
		return list
	}
	at := rand.IntN(len(list))
	return slices.Concat(list[at:], list[:at])
}
