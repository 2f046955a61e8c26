package discovery

import (
	"cmp"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// limits bound the relays that are targets, because every target is a connection of ours. Bootstrap
// relays do not count. Where more are listed, the parties take turns.
type limits struct {
	served  int // relays that served announcements list
	held    int // further relays that only held announcements list
	perHeld int // held repositories that one relay is asked for the states of
}

var defaultLimits = limits{served: 20_000, held: 1000, perHeld: 200}

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

	waiting, left := map[string][]*want{}, map[string]bool{}
	for _, w := range wants {
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
			if w.served() {
				t.Repos[w.ref] = w.repo
			} else {
				waiting[key] = append(waiting[key], w)
			}
		}
	}
	for key, some := range waiting {
		for _, w := range fairly(some, most.perHeld) {
			if _, full := all[key].Repos[w.ref]; !full {
				all[key].Repos[w.ref] = w.repo
			}
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
	line := byParty(wants)
	for len(line) > 0 && limit > 0 {
		line = slices.DeleteFunc(line, func(p *party) bool {
			key, more := p.next(asked)
			if more && limit > 0 {
				asked[key] = true
				limit--
			}
			return !more
		})
	}
}

// fairly takes so many of the repositories; the parties that brought them take turns.
func fairly(wants []*want, most int) []*want {
	if len(wants) <= most {
		return wants
	}
	line := byParty(wants)
	taken := make([]*want, 0, most)
	for turn := 0; ; turn++ {
		for _, p := range line {
			if len(taken) == most {
				return taken
			}
			if turn < len(p.wants) {
				taken = append(taken, p.wants[turn])
			}
		}
	}
}

// byParty sorts repositories by who brought them.
func byParty(wants []*want) (line []*party) {
	parties := map[string]*party{}
	for _, w := range wants {
		p := parties[w.party]
		if p == nil {
			p = &party{}
			parties[w.party] = p
			line = append(line, p)
		}
		p.wants = append(p.wants, w)
	}
	for _, p := range line {
		slices.SortFunc(p.wants, oldestFirst)
	}
	slices.SortFunc(line, func(a, b *party) int {
		return cmp.Or(oldestFirst(a.wants[0], b.wants[0]), strings.Compare(a.wants[0].party, b.wants[0].party))
	})
	return line
}

// oldestFirst orders held announcements by when they came, so that a flood of later ones takes no
// place that one has, and all by reference.
func oldestFirst(a, b *want) int {
	return cmp.Or(a.heldAt.Compare(b.heldAt), strings.Compare(a.ref, b.ref))
}

// party is the repositories that one party brought, and how far their relays have been gone
// through.
type party struct {
	wants      []*want
	repo, rank int
}

// next is the next relay that is not asked yet.
func (p *party) next(asked map[string]bool) (key string, ok bool) {
	for ; p.rank < max(maxServedRelays, maxHeldRelays); p.repo, p.rank = 0, p.rank+1 {
		for ; p.repo < len(p.wants); p.repo++ {
			relays := p.wants[p.repo].relays
			if p.rank >= len(relays) {
				continue
			}
			if key := relays[p.rank].Key(); !asked[key] {
				return key, true
			}
		}
	}
	return "", false
}
