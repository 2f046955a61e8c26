package eventdb

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// model is the naive matcher that the index is compared with: a list, and NIP-01, 09 and 40 read
// literally.
type model struct {
	events []*Event
	gone   []*Event // the requests that are there
	used   []string // ids of requests that have taken something away
	now    Timestamp
}

func (m *model) apply(ev *Event) (stored bool) {
	if nostr.IsEphemeralKind(ev.Kind) || m.deleted(ev) {
		return false
	}
	for i, old := range m.events {
		if old.ID == ev.ID {
			return false
		}
		if sameCoordinate(old, ev) {
			if ev.CreatedAt < old.CreatedAt || ev.CreatedAt == old.CreatedAt && ev.ID > old.ID {
				return false
			}
			m.events = slices.Delete(m.events, i, i+1)
			break
		}
	}
	m.events = append(m.events, ev)
	if isRequest(ev.Kind) {
		m.gone = append(m.gone, ev)
		before := len(m.events)
		if m.events = slices.DeleteFunc(m.events, m.deleted); len(m.events) < before {
			m.used = append(m.used, ev.ID)
		}
		// A request that another takes away has no effect any more.
		m.gone = slices.DeleteFunc(m.gone, func(ev *Event) bool { return !slices.Contains(m.events, ev) })
	}
	return true
}

// remove is an event that has left the log.
func (m *model) remove(id string) {
	is := func(ev *Event) bool { return ev.ID == id }
	m.events, m.gone = slices.DeleteFunc(m.events, is), slices.DeleteFunc(m.gone, is)
}

func (m *model) deleted(ev *Event) bool {
	for _, request := range m.gone {
		if request.PubKey != ev.PubKey || ev.Kind == nostr.KindVanish {
			continue
		}
		if request.Kind == nostr.KindVanish && ev.CreatedAt <= request.CreatedAt {
			return true
		}
		if isRequest(ev.Kind) || request.Kind == nostr.KindVanish {
			continue
		}
		for _, tag := range request.Tags {
			if tag[0] == "e" && tag[1] == ev.ID {
				return true
			}
			if address, ok := nostr.AddressOf(ev); ok && tag[0] == "a" && tag[1] == address.String() && ev.CreatedAt <= request.CreatedAt {
				return true
			}
		}
	}
	return false
}

func (m *model) query(f Filter) (out []*Event) {
	if f.LimitZero {
		return nil
	}
	for _, ev := range m.events {
		if f.Matches(ev) && !expired(ev, m.now) {
			out = append(out, ev)
		}
	}
	slices.SortFunc(out, func(a, b *Event) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
	}
	return out
}

func expired(ev *Event, now Timestamp) bool {
	if tag := ev.Tags.Find("expiration"); tag != nil && !isRequest(ev.Kind) { // what these have taken away would come back
		at, err := strconv.ParseInt(tag[1], 10, 64)
		return err == nil && at > 0 && Timestamp(at) < now
	}
	return false
}

func sameCoordinate(a, b *Event) bool {
	x, is := nostr.AddressOf(a)
	y, _ := nostr.AddressOf(b)
	return is && x == y
}

// world makes random events and filters from small pools, so that they meet.
type world struct {
	rnd     *rand.Rand
	authors []string
	made    []*Event
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
	return fmt.Sprintf("%016x%016x%016x%016x", w.rnd.Uint64(), w.rnd.Uint64(), w.rnd.Uint64(), w.rnd.Uint64())
}

func (w *world) time() Timestamp {
	return Timestamp(min(1, w.rnd.IntN(50)) * (1000 + w.rnd.IntN(60)))
}

func pick[T any](w *world, list []T) T { return list[w.rnd.IntN(len(list))] }

func (w *world) id() string {
	if len(w.made) == 0 || w.rnd.IntN(8) == 0 {
		return w.hex()
	}
	return pick(w, w.made).ID
}

func (w *world) address() string {
	if w.rnd.IntN(20) == 0 { // it names nothing
		return pick(w, []string{"030617:", "10317", "0:"}) + pick(w, w.authors) + pick(w, []string{"", ":x", ":"})
	}
	return strconv.Itoa(pick(w, []int{0, 10317, 30617, 30618})) + ":" + pick(w, w.authors) + ":" + pick(w, worldDs)
}

func (w *world) event() *Event {
	if len(w.made) > 0 && w.rnd.IntN(20) == 0 {
		return pick(w, w.made) // again
	}
	ev := &Event{ID: w.hex(), PubKey: pick(w, w.authors), Kind: pick(w, worldKinds), CreatedAt: w.time(), Content: "…", Sig: strings.Repeat("00", 64)}
	if nostr.IsAddressableKind(ev.Kind) || w.rnd.IntN(10) == 0 {
		ev.Tags = append(ev.Tags, Tag{"d", pick(w, worldDs)})
	}
	for range w.rnd.IntN(4) {
		topic := pick(w, worldTopics)
		ev.Tags = append(ev.Tags, pick(w, Tags{{"e", w.id()}, {"a", w.address()}, {"t", topic}, {"long-name", topic}}))
	}
	if w.rnd.IntN(10) == 0 {
		ev.Tags = append(ev.Tags, Tag{"expiration", strconv.Itoa(int(w.time()))})
	}
	if w.rnd.IntN(80) == 0 {
		ev.Kind = nostr.KindVanish
	}
	if w.rnd.IntN(50) == 0 && ev.Kind != nostr.KindDeletion {
		ev.Tags = append(ev.Tags, Tag{"expiration", "never"}, Tag{"e"}, Tag{})
	}
	w.made = append(w.made, ev)
	return ev
}

func some[T any](w *world, one func() T) []T {
	out := make([]T, 0, 3)
	n := w.rnd.IntN(4)
	if w.rnd.IntN(40) == 0 {
		n = 100 // more than are merged
	}
	for range n {
		out = append(out, one())
	}
	return out
}

func (w *world) filter() Filter {
	var f Filter
	chance := func() bool { return w.rnd.IntN(3) == 0 }
	if w.rnd.IntN(8) == 0 {
		f.IDs = some(w, w.id)
	}
	if chance() {
		f.Authors = some(w, func() string { return pick(w, append(w.authors, strings.ToUpper(w.authors[0]))) })
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
				f.Tags = TagMap{}
			}
			f.Tags[name] = some(w, value)
		}
	}
	if chance() {
		f.Since = at(w.time())
	}
	if chance() {
		f.Until = at(w.time())
	}
	if chance() {
		f.Limit = 1 + w.rnd.IntN(20)
	}
	f.LimitZero = w.rnd.IntN(50) == 0
	return f
}

// compare asks index and model the same filter in every way the index can answer it.
func compare(t *testing.T, v *View, m *model, f Filter) {
	t.Helper()
	wanted := m.query(f)
	entries := func(events []*Event) (out []Entry) {
		for _, ev := range events {
			e, _ := EntryOf(ev)
			out = append(out, e)
		}
		return out
	}
	want := entries(wanted)
	events, err := drain(v.Query(t.Context(), f))
	ids, idErr := drain(v.IDs(t.Context(), f))
	must(t, err, idErr)
	var read []Entry
	for raw, err := range v.QueryRaw(t.Context(), f) {
		must(t, err)
		if ev, err := nostr.Parse(raw.JSON); err != nil || len(read) < len(wanted) && ev.ID != wanted[len(read)].ID {
			t.Fatalf("%s: %v", raw.JSON, err)
		}
		read = append(read, raw.Entry)
	}
	if !slices.Equal(entries(events), want) || !slices.Equal(ids, want) || !slices.Equal(read, want) {
		t.Fatalf("filter %.2000s: %d, %d and %d answers; want %v", f.String(), len(events), len(read), len(ids), wanted)
	}
}

// TestAgainstNaiveMatcher is the heart of the package's tests: thousands of random events, in
// batches, with replays, restarts and a moving clock, and after each a handful of random filters
// whose every answer must be the naive matcher's. Subscribers hear of what each batch has brought.
// In the end an index that is made of what the log has kept has the same entries.
func TestAgainstNaiveMatcher(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, rand.Uint64()} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(rand.New(rand.NewPCG(seed, 7)))
			m := &model{now: 1000}
			dir, o := t.TempDir(), Options{Now: func() Timestamp { return m.now }}
			var db *DB
			var heard, stored []string
			reopen := func() {
				db = open(t, dir, o)
				db.Subscribe(func(recs []Record) {
					v := db.View()
					defer v.Close()
					for _, r := range recs {
						heard = append(heard, r.Event.ID)
						if is, err := has(v, r.Event.ID); err != nil || !is && !expired(r.Event, m.now) {
							t.Errorf("heard of %d before it could be seen: %v", r.Seq, err)
						}
					}
				})
			}
			reopen()
			defer func() { must(t, db.Close()) }()
			seq, log := uint64(0), map[string]Record{} // by subject
			var recent []Record
			for round := range 60 {
				m.now += Timestamp(w.rnd.IntN(2))
				heard, stored = nil, nil
				batch := slices.Clone(recent[len(recent)-min(len(recent), w.rnd.IntN(5)):]) // some that were applied already
				for range 1 + w.rnd.IntN(25) {
					seq += 1 + uint64(w.rnd.IntN(3)) // the log has gaps where it was compacted
					r := Record{Seq: seq}
					if gone := pick(w, append(m.events, w.event())); w.rnd.IntN(15) == 0 && !slices.Contains(m.used, gone.ID) {
						r.Removed, r.Subject = gone.ID, proto.EventSubjectOf(gone).String()
						if log[r.Subject].Event == nil || log[r.Subject].Event.ID == gone.ID { // or it would take away what is there
							m.remove(gone.ID)
							delete(log, r.Subject)
						} else {
							r.Subject = ""
						}
					} else {
						r.Event = w.event()
						r.Request = proto.Request{At: int64(1000 + round), Vanishes: r.Event.Kind == nostr.KindVanish}
						if m.apply(r.Event) {
							log[proto.EventSubjectOf(r.Event).String()] = r
							stored = append(slices.DeleteFunc(stored, func(id string) bool { return id == r.Event.ID }), r.Event.ID)
						}
					}
					batch, recent = append(batch, r), append(recent, r)
				}
				must(t, db.Apply(batch))
				shown := db.View()
				stored = slices.DeleteFunc(stored, func(id string) bool {
					_, hidden := shown.Hidden(id)
					return hidden || !slices.ContainsFunc(m.events, func(ev *Event) bool { return ev.ID == id })
				})
				must(t, shown.Close())
				if !slices.Equal(heard, stored) {
					t.Fatalf("round %d: heard %q, want %q", round, heard, stored)
				}
				if w.rnd.IntN(25) == 0 {
					must(t, db.Close())
					reopen()
				}
				v := db.View().All() // what is hidden has a test of its own
				if v.Seq() != seq || db.Seq() != seq {
					t.Fatalf("round %d: view at %d, index at %d, want %d", round, v.Seq(), db.Seq(), seq)
				}
				for range 10 {
					compare(t, v, m, w.filter())
				}
				checkLookUps(t, w, db, v, m)
				must(t, v.Close())
			}
			rebuilt := memory(t, o)
			must(t, rebuilt.apply(slices.SortedFunc(maps.Values(log), func(a, b Record) int { return cmp.Compare(a.Seq, b.Seq) }), seq))
			if n, err := db.Compare(t.Context(), rebuilt); err != nil || n > 0 || len(log) < 100 {
				t.Errorf("%d entries of %d events differ, %v", n, len(log), err)
			}
		})
	}
}

// checkLookUps compares what is asked by identity.
func checkLookUps(t *testing.T, w *world, db *DB, v *View, m *model) {
	t.Helper()
	for range 5 {
		ev := w.event()
		e, err := EntryOf(ev)
		must(t, err)
		present := slices.ContainsFunc(m.events, func(o *Event) bool { return o.ID == ev.ID && !expired(o, m.now) })
		want := error(nil)
		if !present {
			want = ErrNotFound
		}
		has, err := db.HasEach([][32]byte{e.ID})
		kind, kindErr := v.Kind(ev.ID)
		got, eventErr := v.Event(ev.ID)
		if err != nil || has[0] != present || kindErr != want || eventErr != want || present && (kind != ev.Kind || got.ID != ev.ID) {
			t.Fatalf("%s: %v, %v; kind %d, %v; event %v, %v; want it %v", ev.ID, has, err, kind, kindErr, got, eventErr, present)
		}
		if deleted, err := v.Deleted(ev); err != nil || deleted != m.deleted(ev) {
			t.Fatalf("deleted %s: %v, %v; want %v", ev.ID, deleted, err, m.deleted(ev))
		}
		d := ev.Tags.GetD()
		var served, holds string
		if i := slices.IndexFunc(m.events, func(o *Event) bool { return sameCoordinate(o, ev) }); i >= 0 {
			if holds = m.events[i].ID; !expired(m.events[i], m.now) {
				served = holds
			}
		}
		holder, held, err := v.Holder(ev.Kind, ev.PubKey, d)
		if err != nil || held != (holds != "") || held && hex.EncodeToString(holder.ID[:]) != holds {
			t.Fatalf("%d:%s:%s is held by %x, %v, %v; want %q", ev.Kind, ev.PubKey, d, holder.ID, held, err, holds)
		}
		if got, err := v.Replaceable(ev.Kind, ev.PubKey, d); (err == nil) != (served != "") || err == nil && got.ID != served {
			t.Fatalf("holder of %d:%s:%s: %v, %v; want %q", ev.Kind, ev.PubKey, d, got, err, served)
		}
	}
}
