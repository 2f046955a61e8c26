package repos

import (
	"cmp"
	"slices"
	"strings"
)

// admit decides which relays are targets where more are listed than the limits allow, and marks those for which that changes as touched. As
// long as all have room it costs nothing.
func (b *Book) admit(touched map[string]bool) {
	if len(touched) == 0 {
		return
	}
	ours := 0
	for key := range b.bootstrap {
		if b.relays[key] != nil {
			ours++
		}
	}
	served, held := b.inverted.served, len(b.relays)-ours-b.inverted.served
	if served <= b.limits.Served && held <= b.limits.Held && b.refused == 0 {
		return
	}
	in := map[string]bool{}
	for key := range b.bootstrap {
		in[key] = true
	}
	b.choose(in, b.limits.Served, func(w *want) bool { return w.served() })
	b.choose(in, b.limits.Held, func(w *want) bool { return !w.served() && len(w.relays) > 0 })
	b.refused = 0
	for key, r := range b.relays {
		if r.refused == in[key] {
			r.refused = !in[key]
			touched[key] = true
		}
		if r.refused {
			b.refused++
		}
	}
}

// choose lets in relays that some of the repositories list, up to limit. Whoever brought the repositories takes turns, and has the first relay
// of each of his come before the second of any: who names a thousand relays takes no place from others who name one.
func (b *Book) choose(in map[string]bool, limit int, which func(*want) bool) {
	brought := map[string]*turns{}
	for _, w := range b.wants {
		if !which(w) {
			continue
		}
		who := w.owner
		if !w.served() {
			who = w.held.origin
		}
		if brought[who] == nil {
			brought[who] = &turns{who: who}
		}
		brought[who].wants = append(brought[who].wants, w)
	}
	var line []*turns
	for _, t := range brought {
		slices.SortFunc(t.wants, oldestFirst)
		line = append(line, t)
	}
	slices.SortFunc(line, func(a, b *turns) int {
		return cmp.Or(oldestFirst(a.wants[0], b.wants[0]), strings.Compare(a.who, b.who))
	})
	for len(line) > 0 && limit > 0 {
		line = slices.DeleteFunc(line, func(t *turns) bool {
			key, more := t.next(in)
			if more && limit > 0 {
				in[key] = true
				limit--
			}
			return !more
		})
	}
}

// oldestFirst orders held announcements by when they came, so that a flood of later ones takes no place that one has, and all by reference.
func oldestFirst(a, b *want) int {
	if a.held != nil && b.held != nil {
		if c := a.held.heldAt.Compare(b.held.heldAt); c != 0 {
			return c
		}
	}
	return strings.Compare(a.ref, b.ref)
}

// turns are the repositories that somebody brought, and how far their relays have been gone through.
type turns struct {
	who        string
	wants      []*want
	repo, rank int
}

// next is the next relay that is not in yet.
func (t *turns) next(in map[string]bool) (key string, ok bool) {
	for ; t.rank < max(maxServedRelays, maxHeldRelays); t.repo, t.rank = 0, t.rank+1 {
		for ; t.repo < len(t.wants); t.repo++ {
			relays := t.wants[t.repo].relays
			if t.rank >= len(relays) {
				continue
			}
			if key := relays[t.rank].Key(); !in[key] {
				return key, true
			}
		}
	}
	return "", false
}
