package eventdb

import (
	"fmt"
	"iter"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
)

// filters are bans that are named by what they match.
type filters []Filter

func (fs filters) Reach() iter.Seq2[string, Filter] {
	return func(yield func(string, Filter) bool) {
		for _, f := range fs {
			if !yield(f.String(), f) {
				return
			}
		}
	}
}

func (fs filters) Banned(ev *Event) (string, bool) {
	n := slices.IndexFunc(fs, func(f Filter) bool { return f.Matches(ev) })
	if n < 0 {
		return "", false
	}
	return fs[n].String(), true
}

// TestHide: what is banned is not served, nor what names only that, whether it was there before or
// comes later. Nothing else is hidden, and all is served again without the bans.
func TestHide(t *testing.T) {
	t.Parallel()
	naming := func(n, kind int, tag string, named ...*Event) *Event {
		ev := made(n, kind, Timestamp(100+n), Tag{"e", made(99, 1, 1).ID}) // which is not here
		for _, o := range named {
			name := o.ID
			if address, has := nostr.AddressOf(o); has {
				name = address.String()
			}
			ev.Tags = append(ev.Tags, Tag{tag, name})
		}
		return ev
	}
	repo, other, odd := project(1, "x", 1), project(2, "y", 1), made(3, 1, 1)
	issue := naming(4, 1621, "a", repo)
	shown := []*Event{other, naming(7, 1621, "a", repo, other), naming(8, 1111, "q", issue, other), naming(9, 1984, "e", odd), naming(10, 5, "e", odd),
		naming(11, 30618, "a", repo), made(12, 1, 1)}
	hidden := []*Event{repo, odd, issue, naming(5, 1111, "E", issue), naming(6, 7, "q", odd, issue)}
	o := Options{KeepDeleted: true} // event 10 deletes nothing then
	bans := filters{{Kinds: []int{30030}, Tags: TagMap{"d": {"x"}}}, {IDs: []string{odd.ID}}}
	for _, later := range []bool{false, true} {
		t.Run(fmt.Sprint(later), func(t *testing.T) {
			t.Parallel()
			db, heard := memory(t, o), 0
			db.Subscribe(func(recs []Record) { heard += len(recs) })
			if later {
				must(t, db.Hide(bans))
			}
			apply(t, db, slices.Concat(shown, hidden)...)
			if later && heard != len(shown) {
				t.Errorf("subscribers heard of %d events, want %d", heard, len(shown))
			}
			before := viewOf(t, db)
			if !later {
				must(t, db.Hide(bans))
			}
			holds(t, db, shown...)
			v := viewOf(t, db)
			if n := count(t, before, Filter{}); !later && n != len(shown) {
				t.Errorf("a view from before serves %d", n)
			}
			if n := count(t, v.All(), Filter{}); n != len(shown)+len(hidden) {
				t.Errorf("%d events are there", n)
			}
			of := map[string]int{}
			for _, ev := range hidden {
				name, is := v.Hidden(ev.ID)
				by, err := v.HiddenBy(name)
				e, _ := EntryOf(ev)
				known, badHas := db.HasEach([][32]byte{e.ID})
				if _, notFound := v.Event(ev.ID); !is || notFound != ErrNotFound || err != nil || !slices.Contains(by, e) || badHas != nil || !known[0] {
					t.Errorf("event %s: hidden %v, %v; by %q: %v; known %v", ev.ID, is, notFound, name, by, known)
				}
				of[name]++
			}
			if of[bans[0].String()] < 3 || of[bans[1].String()] < 1 {
				t.Errorf("hidden by each ban: %v", of)
			}
			_, err := v.Replaceable(30030, me, "x")
			if deleted, badDeletion := v.Deleted(odd); err != ErrNotFound || deleted || badDeletion != nil {
				t.Errorf("at its address: %v; deleted: %v, %v", err, deleted, badDeletion)
			}
			must(t, db.Hide(filters{}))
			holds(t, db, slices.Concat(shown, hidden)...)
		})
	}
}
