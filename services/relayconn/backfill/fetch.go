package backfill

import (
	"encoding/hex"
	"fmt"

	"github.com/nbd-wtf/go-nostr"
)

const (
	// perFetch is how many ids one REQ names.
	perFetch = 100
	// fetchTries is how often ids are asked for that the relay named and does not deliver.
	fetchTries = 2
	// mostNamed is how many ids of a batch are kept in mind, half of them at least, so that none of
	// them is fetched again that another filter finds as well.
	mostNamed = 20_000
)

// wantedID is an event that a relay named, and what named it first.
type wantedID struct {
	id [32]byte
	by *find
}

// fetch is the way of asking for events by id.
type fetch struct {
	b     *Backfill
	ids   map[string]*find // that have not come
	came  map[string]*find
	total int // events of this answer, each as often as it came
	tries int
}

func isFetch(t *task) bool {
	_, is := t.way.(*fetch)
	return is
}

// fetching makes a task of some of what waits to be fetched; nil: nothing waits.
func (b *Backfill) fetching() *task {
	for _, batch := range b.batches {
		for len(batch.ids) > 0 {
			some := batch.ids[:min(len(batch.ids), b.o.Allowance.Page(perFetch))]
			if batch.ids = batch.ids[len(some):]; len(batch.ids) == 0 {
				batch.ids = nil
			}
			f := &fetch{b: b, ids: make(map[string]*find, len(some)), came: map[string]*find{}}
			for _, wanted := range some {
				id := hex.EncodeToString(wanted.id[:])
				if b.o.Negentropy.Known(id) { // another relay was faster
					b.wantedIDs--
					continue
				}
				f.ids[id] = wanted.by
			}
			if len(f.ids) > 0 {
				t := &task{batch: batch, way: f, found: true}
				batch.tasks = append(batch.tasks, t)
				batch.running++
				return t
			}
			b.spent = true
		}
	}
	return nil
}

// Filters name what has not come.
func (f *fetch) Filters() []nostr.Filter {
	ids := make([]string, 0, len(f.ids))
	for id := range f.ids {
		ids = append(ids, id)
	}
	return []nostr.Filter{{IDs: ids, Limit: len(ids)}}
}

// Matches reports whether an event was asked for.
func (f *fetch) Matches(ev *nostr.Event) bool {
	_, waits := f.ids[ev.ID]
	return waits || f.came[ev.ID] != nil
}

// Saw notes that an event has come.
func (f *fetch) Saw(ev *nostr.Event) (fresh, enough bool) {
	f.total++
	var by *find
	if by, fresh = f.ids[ev.ID]; fresh {
		delete(f.ids, ev.ID)
		f.came[ev.ID] = by
		f.b.wantedIDs--
	}
	return fresh, f.total >= slack*perFetch
}

// slack is how many more events than were asked for may come, as a factor.
const slack = 4

// Ended asks once more for what has not come, and then no more.
func (f *fetch) Ended() (more bool, err error) {
	if len(f.ids) == 0 {
		return false, nil
	}
	f.total = 0
	if f.tries++; f.tries < fetchTries {
		return true, nil
	}
	unkept := len(f.ids)
	for _, by := range f.ids {
		by.unkept = true
	}
	f.drop()
	return false, fmt.Errorf("the relay names events by NIP-77 and does not deliver them (%d of %d)", unkept, unkept+len(f.came))
}

// Again has nothing to forget: what came is here.
func (f *fetch) Again() { f.total = 0 }

// Restart lets go of everything. What is missing is found out anew.
func (f *fetch) Restart() { f.drop() }

// Done has nothing to say.
func (f *fetch) Done(Warn) { f.drop() }

func (f *fetch) drop() {
	f.b.wantedIDs -= len(f.ids)
	f.ids, f.came = nil, nil
}
