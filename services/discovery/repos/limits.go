package repos

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// admit decides which relays are targets where more are listed than the limits allow, and marks
// those for which that changes as touched. As long as all have room it costs nothing.
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

// choose lets in relays that some of the repositories list, up to limit. Whoever brought the
// repositories takes turns, and has the first relay of each of his come before the second of any:
// who names a thousand relays takes no place from others who name one.
func (b *Book) choose(in map[string]bool, limit int, which func(*want) bool) {
	line := turnsOf(func(yield func(*want) bool) {
		for _, w := range b.wants {
			if which(w) && !yield(w) {
				return
			}
		}
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

// fairly takes so many of the repositories, whoever brought them by turns.
func fairly(wants []*want, most int) []*want {
	if len(wants) <= most {
		return wants
	}
	line := turnsOf(slices.Values(wants))
	taken := make([]*want, 0, most)
	for turn := 0; ; turn++ {
		for _, t := range line {
			if len(taken) == most {
				return taken
			}
			if turn < len(t.wants) {
				taken = append(taken, t.wants[turn])
			}
		}
	}
}

// turnsOf sorts repositories by who brought them: owners of served ones; of held ones clients and
// relays, as keys cost nothing.
func turnsOf(wants iter.Seq[*want]) (line []*turns) {
	brought := map[string]*turns{}
	for w := range wants {
		who := w.owner
		if !w.served() {
			who = w.held.origin
		}
		if brought[who] == nil {
			brought[who] = &turns{who: who}
			line = append(line, brought[who])
		}
		brought[who].wants = append(brought[who].wants, w)
	}
	for _, t := range line {
		slices.SortFunc(t.wants, oldestFirst)
	}
	slices.SortFunc(line, func(a, b *turns) int {
		return cmp.Or(oldestFirst(a.wants[0], b.wants[0]), strings.Compare(a.who, b.who))
	})
	return line
}

// oldestFirst orders held announcements by when they came, so that a flood of later ones takes no
// place that one has, and all by reference.
func oldestFirst(a, b *want) int {
	if a.held != nil && b.held != nil {
		if c := a.held.heldAt.Compare(b.held.heldAt); c != 0 {
			return c
		}
	}
	return strings.Compare(a.ref, b.ref)
}

// turns are the repositories that somebody brought, and how far their relays have been gone
// through.
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
