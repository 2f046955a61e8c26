package eventdb

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
)

// filters are bans that are named by what they match.
type filters []nostr.Filter

func (fs filters) Reach() iter.Seq2[string, nostr.Filter] {
	return func(yield func(string, nostr.Filter) bool) {
		for _, f := range fs {
			if !yield(f.String(), f) {
				return
			}
		}
	}
}

func (fs filters) Banned(ev *nostr.Event) (string, bool) {
	n := slices.IndexFunc(fs, func(f nostr.Filter) bool { return f.Matches(ev) })
	if n < 0 {
		return "", false
	}
	return fs[n].String(), true
}

// without is the model without what the bans hide: first what they match, and then, again and again,
// what names something hidden and nothing else that is here.
func (m *model) without(bans filters) *model {
	hidden, byName := map[*nostr.Event]bool{}, map[string]*nostr.Event{}
	for _, ev := range m.events {
		_, hidden[ev] = bans.Banned(ev)
		byName[ev.ID] = ev
		if address, has := addressOf(ev); has {
			byName[address] = ev
		}
	}
	for grown := true; grown; {
		grown = false
		for _, ev := range m.events {
			if hidden[ev] || slices.Contains(standsAlone, ev.Kind) {
				continue
			}
			here := slices.DeleteFunc(nostr.NamesOf(ev), func(name string) bool { return byName[name] == nil })
			if len(here) > 0 && !slices.ContainsFunc(here, func(name string) bool { return !hidden[byName[name]] }) {
				hidden[ev], grown = true, true
			}
		}
	}
	shown := slices.DeleteFunc(slices.Clone(m.events), func(ev *nostr.Event) bool { return hidden[ev] })
	return &model{now: m.now, gone: m.gone, events: shown}
}

// TestHiddenAgainstNaiveMatcher: with bans that change while events come, every answer is that of the
// naive matcher over what is not hidden, and subscribers hear of nothing else.
func TestHiddenAgainstNaiveMatcher(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, rand.Uint64()} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(rand.New(rand.NewPCG(seed, 7)))
			m := &model{now: 900}
			db := memory(t, Options{Now: func() nostr.Timestamp { return m.now }})
			var heard []string
			db.Subscribe(func(recs []Record) {
				for _, r := range recs {
					heard = append(heard, r.Event.ID)
				}
			})
			var bans filters
			most := 0
			for round := range 60 {
				if round%10 == 0 {
					repositories := []int{nostr.KindAnnouncement, nostr.KindState}
					bans = append(bans[min(len(bans), w.rnd.IntN(4)):],
						nostr.Filter{Authors: []string{pick(w, w.authors)}, Kinds: repositories, Tags: nostr.TagMap{"d": {pick(w, worldDs)}}},
						nostr.Filter{Kinds: repositories, Tags: nostr.TagMap{"d": {pick(w, worldDs)}}},
						nostr.Filter{IDs: []string{w.id(), w.id()}})
					switch round {
					case 10, 30:
						bans = append(bans, nostr.Filter{Authors: []string{pick(w, w.authors)}})
					case 50:
						bans = nil
					}
				}
				heard = nil
				for range 1 + w.rnd.IntN(15) {
					ev := w.event()
					address, _ := addressOf(ev)
					// What is here stays hidden or not until the next call of Hide, whatever leaves that it
					// names, or comes.
					if ev.Kind == nostr.KindDeletion || slices.ContainsFunc(m.events, func(o *nostr.Event) bool {
						names := nostr.NamesOf(o)
						return sameCoordinate(o, ev) || slices.Contains(names, ev.ID) || slices.Contains(names, address)
					}) {
						continue
					}
					m.apply(ev)
					apply(t, db, ev)
				}
				if round%10 == 0 {
					must(t, db.Hide(bans))
				}
				served := m.without(bans)
				most = max(most, len(m.events)-len(served.events))
				v := db.View()
				for range 5 {
					f := w.filter()
					compare(t, v, served, f)
					compare(t, v.All(), m, f)
				}
				for _, ev := range m.events {
					shown := slices.Contains(served.events, ev)
					if is, err := has(v, ev.ID); err != nil || is != shown {
						t.Fatalf("has %s: %v, %v; want %v", ev.ID, is, err, shown)
					}
					name, hidden := v.Hidden(ev.ID)
					if hidden == shown {
						t.Fatalf("%s is hidden: %v; want %v", ev.ID, hidden, !shown)
					}
					if got, err := v.Replaceable(ev.Kind, ev.PubKey, ev.Tags.GetD()); err == nil && got.ID == ev.ID && !shown {
						t.Fatalf("%s is served at its address", ev.ID)
					}
					if ids, err := v.HiddenBy(name); hidden && (err != nil || !slices.Contains(ids, ev.ID)) {
						t.Fatalf("%s is not among what %s hides: %v", ev.ID, name, err)
					}
					e, _ := EntryOf(ev)
					if has, err := db.HasEach([][32]byte{e.ID}); err != nil || !has[0] {
						t.Fatalf("the log does not have %s any more: %v", ev.ID, err)
					}
					if name, banned := bans.Banned(ev); banned && round%10 != 0 && slices.Contains(heard, ev.ID) {
						t.Fatalf("subscribers heard of %s, which %s hides", ev.ID, name)
					}
				}
				must(t, v.Close())
			}
			if most < 20 {
				t.Errorf("only %d events were hidden at once", most)
			}
		})
	}
}
