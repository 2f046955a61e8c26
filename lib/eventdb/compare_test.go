package eventdb

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestARebuiltIndexIsTheSame: an index that has seen much and one that is made of what the log has
// kept of it has the same entries. So what Compare finds is damage.
func TestARebuiltIndexIsTheSame(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, rand.Uint64()} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(rand.New(rand.NewPCG(seed, 11)))
			m := &model{now: 1000}
			clock := Options{Now: func() nostr.Timestamp { return m.now }}
			db := open(t, "", clock)
			defer closeDB(t, db)
			log := map[string]Record{} // by subject
			for seq := uint64(1); seq < 1500; seq++ {
				m.now = 1000 + nostr.Timestamp(seq/50)
				r := Record{Seq: seq, Event: w.event()}
				if !m.apply(r.Event) {
					continue // ingest would not have let it in
				}
				log[proto.EventSubjectOf(r.Event).String()] = r
				if err := db.Apply([]Record{r}); err != nil {
					t.Fatal(err)
				}
			}
			records := make([]Record, 0, len(log))
			for _, r := range log {
				records = append(records, r)
			}
			slices.SortFunc(records, func(a, b Record) int { return int(a.Seq) - int(b.Seq) })
			rebuilt := open(t, "", clock)
			defer closeDB(t, rebuilt)
			if err := rebuilt.Apply(records); err != nil {
				t.Fatal(err)
			}
			if n, err := db.Compare(t.Context(), rebuilt); err != nil || n > 0 {
				t.Errorf("%d entries differ, %v", n, err)
			}
			if len(records) < 300 {
				t.Errorf("the log has only %d events", len(records))
			}
		})
	}
}

// TestCompareFindsEveryEntry: an entry that is missing, too many or wrong is found, in every table.
func TestCompareFindsEveryEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(rand.New(rand.NewPCG(3, 3)))
	var records []Record
	for seq := uint64(1); seq < 400; seq++ {
		records = append(records, Record{Seq: seq, Event: w.event()})
	}
	whole, broken := open(t, ""), open(t, "")
	defer closeDB(t, whole)
	defer closeDB(t, broken)
	for _, db := range []*DB{whole, broken} {
		if err := db.Apply(records); err != nil {
			t.Fatal(err)
		}
	}
	differ := func(what string, db, other *DB, want int) {
		t.Helper()
		if n, err := db.Compare(t.Context(), other); n != want || err != nil {
			t.Errorf("%s: %d differ, %v; want %d", what, n, err, want)
		}
	}
	differ("the same", whole, broken, 0)
	for _, table := range []byte("itakgrdc") {
		what := fmt.Sprintf("table %c", table)
		restore := broken.spoilEntry(table, nil)
		differ(what+" lacks one", broken, whole, 1)
		differ(what+" has one more", whole, broken, 1)
		restore()
		if table != 'd' { // its entries have no value
			restore = broken.spoilEntry(table, []byte("xx"))
			differ(what+" has a wrong one", broken, whole, 1)
			restore()
		}
	}
}

// spoilEntry replaces the value of the first entry of a table, or removes the entry, behind the index's
// back, until restore is called.
func (db *DB) spoilEntry(table byte, value []byte) (restore func()) {
	it, err := db.pebble.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
	if err != nil {
		panic(err)
	}
	if !it.First() {
		panic(fmt.Sprintf("table %c is empty", table))
	}
	full, was := slices.Clone(it.Key()), slices.Clone(it.Value())
	if err := it.Close(); err != nil {
		panic(err)
	}
	set := func(value []byte) {
		if value == nil {
			err = db.pebble.Delete(full, pebble.NoSync)
		} else {
			err = db.pebble.Set(full, value, pebble.NoSync)
		}
		if err != nil {
			panic(err)
		}
	}
	set(value)
	return func() { set(append([]byte{}, was...)) }
}
