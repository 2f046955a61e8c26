package discovery

import (
	"cmp"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// limits bound the relays that are targets, because every target is a connection of ours. Bootstrap
// relays do not count. Where more are listed, the parties take turns. How many held repositories a
// relay is asked for the states of, only the room of purgatory bounds: what no state is asked for
// expires.
type limits struct {
	served int // relays that served announcements list
	held   int // further relays that only held announcements list
}

var defaultLimits = limits{served: 20_000, held: 1000}

// targets inverts repository → relays into relay → repositories, by the relay's identity
// (nostr.RelayURL.Key). refused is how many relays are listed and not asked because of the limits.
func targets(wants []*want, bootstrap []nostr.RelayURL, most limits) (all map[string]proto.Target, refused int) {
	all = map[string]proto.Target{}
	asked := map[string]bool{}
	for _, url := range bootstrap {
		all[url.Key()] = proto.Target{URL: string(url), Bootstrap: true, Repos: map[string]proto.Wanted{}}
		asked[url.Key()] = true
	}
	var served, held []*want
	for _, w := range wants {
		if w.served() {
			served = append(served, w)
		} else {
			held = append(held, w)
		}
	}
	admit(asked, served, most.served)
	admit(asked, held, most.held)

	left := map[string]bool{}
	for _, w := range slices.Concat(held, served) { // a repository may be both
		for _, url := range w.relays {
			key := url.Key()
			if !asked[key] {
				left[key] = true
				continue
			}
			t, known := all[key]
			if !known {
				t.Repos = map[string]proto.Wanted{}
			}
			// wss rather than ws, whichever comes first; the operator's URL stays.
			if !known || !t.Bootstrap && url.Secure() {
				t.URL = string(url)
				all[key] = t
			}
			t.Repos[w.ref] = w.repo
		}
	}
	return all, len(left)
}

// admit adds relays that some of the repositories list, up to limit. The parties that brought the
// repositories take turns, and the first relay of each repository comes before the second of any:
// one that names a thousand relays takes no place from others that name one.
func admit(asked map[string]bool, wants []*want, limit int) {
	listed := map[string]bool{}
	for _, w := range wants {
		for _, url := range w.relays {
			if key := url.Key(); !asked[key] {
				listed[key] = true
			}
		}
	}
	if len(listed) <= limit {
		for key := range listed {
			asked[key] = true
		}
		return
	}
	var lines [][]string
	for _, some := range byParty(wants) {
		var line []string
		for rank := range max(maxServedRelays, maxHeldRelays) {
			for _, w := range some {
				if rank < len(w.relays) {
					line = append(line, w.relays[rank].Key())
				}
			}
		}
		lines = append(lines, line)
	}
	inTurn(lines, limit, func(key string) bool {
		more := !asked[key]
		asked[key] = true
		return more
	})
}

// inTurn takes so many of what is in the lines, one of each line after the other. What take does
// not want is passed over.
func inTurn[T any](lines [][]T, most int, take func(T) bool) {
	for len(lines) > 0 && most > 0 {
		var rest [][]T
		for _, line := range lines {
			for len(line) > 0 && most > 0 {
				taken := take(line[0])
				if line = line[1:]; taken {
					most--
					break
				}
			}
			if len(line) > 0 {
				rest = append(rest, line)
			}
		}
		lines = rest
	}
}

// byParty sorts repositories by who brought them.
func byParty(wants []*want) (lines [][]*want) {
	parties := map[string][]*want{}
	for _, w := range wants {
		parties[w.party] = append(parties[w.party], w)
	}
	for _, some := range parties {
		slices.SortFunc(some, oldestFirst)
		lines = append(lines, some)
	}
	slices.SortFunc(lines, func(a, b []*want) int {
		return cmp.Or(oldestFirst(a[0], b[0]), strings.Compare(a[0].party, b[0].party))
	})
	return lines
}

// oldestFirst orders held announcements by when they came, so that a flood of later ones takes no
// place that one has, and all by reference.
func oldestFirst(a, b *want) int {
	return cmp.Or(a.heldAt.Compare(b.heldAt), strings.Compare(a.ref, b.ref))
}
