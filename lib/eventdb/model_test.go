package eventdb

import (
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"tendril.dev/lib/nostr"
)

// model is the naive matcher that the index is compared with: a list, and NIP-01, 09 and 40 read
// literally.
type model struct {
	events []*nostr.Event
	gone   []*nostr.Event // every deletion request ever applied
	now    nostr.Timestamp
}

func (m *model) apply(ev *nostr.Event) (stored bool) {
	if nostr.IsEphemeralKind(ev.Kind) || m.deleted(ev) {
		return false
	}
	for i, old := range m.events {
		if old.ID == ev.ID {
			return false
		}
		if sameCoordinate(old, ev) {
			if !newer(ev, old) {
				return false
			}
			m.events = slices.Delete(m.events, i, i+1)
			break
		}
	}
	m.events = append(m.events, ev)
	if ev.Kind == nostr.KindDeletion {
		m.gone = append(m.gone, ev)
		m.events = slices.DeleteFunc(m.events, m.deleted)
	}
	return true
}

// remove is an event that has left the log.
func (m *model) remove(id string) {
	m.events = slices.DeleteFunc(m.events, func(ev *nostr.Event) bool { return ev.ID == id })
}

func (m *model) deleted(ev *nostr.Event) bool {
	if ev.Kind == nostr.KindDeletion {
		return false
	}
	for _, request := range m.gone {
		if request.PubKey != ev.PubKey {
			continue
		}
		for _, tag := range request.Tags {
			if tag[0] == "e" && tag[1] == ev.ID {
				return true
			}
			if address, ok := addressOf(ev); ok && tag[0] == "a" && tag[1] == address && ev.CreatedAt <= request.CreatedAt {
				return true
			}
		}
	}
	return false
}

func (m *model) query(f nostr.Filter) []*nostr.Event {
	if f.LimitZero {
		return nil
	}
	var out []*nostr.Event
	for _, ev := range m.events {
		if f.Matches(ev) && !expired(ev, m.now) {
			out = append(out, ev)
		}
	}
	slices.SortFunc(out, func(a, b *nostr.Event) int {
		if a.CreatedAt != b.CreatedAt {
			return int(b.CreatedAt - a.CreatedAt)
		}
		return strings.Compare(a.ID, b.ID)
	})
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
	}
	return out
}

func expired(ev *nostr.Event, now nostr.Timestamp) bool {
	if tag := ev.Tags.Find("expiration"); tag != nil {
		at, err := strconv.ParseInt(tag[1], 10, 64)
		return err == nil && at > 0 && nostr.Timestamp(at) < now
	}
	return false
}

func newer(a, b *nostr.Event) bool {
	return a.CreatedAt > b.CreatedAt || a.CreatedAt == b.CreatedAt && a.ID < b.ID
}

func sameCoordinate(a, b *nostr.Event) bool {
	x, okX := addressOf(a)
	y, okY := addressOf(b)
	return okX && okY && x == y
}

func addressOf(ev *nostr.Event) (string, bool) {
	switch {
	case nostr.IsReplaceableKind(ev.Kind):
		return strconv.Itoa(ev.Kind) + ":" + ev.PubKey + ":", true
	case nostr.IsAddressableKind(ev.Kind):
		return strconv.Itoa(ev.Kind) + ":" + ev.PubKey + ":" + ev.Tags.GetD(), true
	}
	return "", false
}

// world makes random events and filters from small pools, so that they meet.
type world struct {
	rnd     *rand.Rand
	authors []string
	made    []*nostr.Event
}

var (
	worldKinds  = []int{0, 1, 5, 7, 1111, 1617, 1618, 1621, 10317, 20001, 30617, 30618}
	worldDs     = []string{"", "x", "a:b", "ünï", strings.Repeat("long", 100)}
	worldTopics = []string{"", "go", "nostr", "\x00é", strings.Repeat("t", 300)}
)

func newWorld(rnd *rand.Rand) *world {
	w := &world{rnd: rnd}
	for range 6 {
		w.authors = append(w.authors, w.hex())
	}
	return w
}

func (w *world) hex() string {
	var b [32]byte
	for i := range b {
		b[i] = byte(w.rnd.Uint32())
	}
	return hex.EncodeToString(b[:])
}

func (w *world) time() nostr.Timestamp { return nostr.Timestamp(1000 + w.rnd.IntN(60)) }

func pick[T any](w *world, list []T) T { return list[w.rnd.IntN(len(list))] }

func (w *world) id() string {
	if len(w.made) == 0 || w.rnd.IntN(8) == 0 {
		return w.hex()
	}
	return pick(w, w.made).ID
}

func (w *world) address() string {
	return strconv.Itoa(pick(w, []int{0, 10317, 30617, 30618})) + ":" + pick(w, w.authors) + ":" + pick(w, worldDs)
}

func (w *world) event() *nostr.Event {
	if len(w.made) > 0 && w.rnd.IntN(20) == 0 {
		return pick(w, w.made) // again
	}
	ev := &nostr.Event{ID: w.hex(), PubKey: pick(w, w.authors), Kind: pick(w, worldKinds), CreatedAt: w.time(), Content: "…", Sig: strings.Repeat("00", 64)}
	if nostr.IsAddressableKind(ev.Kind) || w.rnd.IntN(10) == 0 {
		ev.Tags = append(ev.Tags, nostr.Tag{"d", pick(w, worldDs)})
	}
	for range w.rnd.IntN(4) {
		switch w.rnd.IntN(4) {
		case 0:
			ev.Tags = append(ev.Tags, nostr.Tag{"e", w.id()})
		case 1:
			ev.Tags = append(ev.Tags, nostr.Tag{"a", w.address()})
		case 2:
			ev.Tags = append(ev.Tags, nostr.Tag{"t", pick(w, worldTopics)})
		case 3:
			ev.Tags = append(ev.Tags, nostr.Tag{"long-name", pick(w, worldTopics)})
		}
	}
	if w.rnd.IntN(10) == 0 {
		ev.Tags = append(ev.Tags, nostr.Tag{"expiration", strconv.Itoa(int(w.time()))})
	}
	if w.rnd.IntN(50) == 0 {
		ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "never"}, nostr.Tag{"e"}, nostr.Tag{})
		ev.Tags = slices.DeleteFunc(ev.Tags, func(t nostr.Tag) bool { return len(t) < 2 && ev.Kind == nostr.KindDeletion })
	}
	w.made = append(w.made, ev)
	return ev
}

func some[T any](w *world, one func() T) []T {
	out := make([]T, 0, 3)
	for range w.rnd.IntN(4) {
		out = append(out, one())
	}
	if w.rnd.IntN(40) == 0 {
		for range 100 { // more than are merged
			out = append(out, one())
		}
	}
	return out
}

func (w *world) filter() nostr.Filter {
	var f nostr.Filter
	chance := func() bool { return w.rnd.IntN(3) == 0 }
	if w.rnd.IntN(8) == 0 {
		f.IDs = some(w, w.id)
	}
	if chance() {
		f.Authors = some(w, func() string {
			if w.rnd.IntN(10) == 0 {
				return strings.ToUpper(pick(w, w.authors))
			}
			return pick(w, w.authors)
		})
	}
	if chance() {
		f.Kinds = some(w, func() int { return pick(w, append(worldKinds, -1, 70000)) })
	}
	for name, value := range map[string]func() string{
		"e": w.id, "a": w.address, "d": func() string { return pick(w, worldDs) },
		"t": func() string { return pick(w, worldTopics) }, "long-name": func() string { return pick(w, worldTopics) },
	} {
		if w.rnd.IntN(6) == 0 {
			if f.Tags == nil {
				f.Tags = nostr.TagMap{}
			}
			f.Tags[name] = some(w, value)
		}
	}
	if chance() {
		t := w.time()
		f.Since = &t
	}
	if chance() {
		t := w.time()
		f.Until = &t
	}
	if chance() {
		f.Limit = 1 + w.rnd.IntN(20)
	}
	f.LimitZero = w.rnd.IntN(50) == 0
	return f
}
