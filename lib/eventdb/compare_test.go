package eventdb_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

func differences(t testing.TB, db, other *eventdb.DB) (all []eventdb.Difference) {
	t.Helper()
	if err := db.Compare(t.Context(), other, func(d eventdb.Difference) bool {
		all = append(all, d)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestAnIndexMadeAnewIsTheSame: whatever an index has seen, one that is made of what the log has
// kept of it has the same entries. So what Compare finds is damage.
func TestAnIndexMadeAnewIsTheSame(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, rand.Uint64()} {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(rand.New(rand.NewPCG(seed, 11)))
			m := &model{now: 1000}
			clock := eventdb.WithClock(func() nostr.Timestamp { return m.now })
			db := open(t, "", clock)
			defer closeDB(t, db)
			log := map[string]eventdb.Record{} // by subject
			for seq := uint64(1); seq < 1500; seq++ {
				m.now = 1000 + nostr.Timestamp(seq/50)
				r := eventdb.Record{Seq: seq, Event: w.event()}
				if !m.apply(r.Event) {
					continue // ingest would not have let it in
				}
				log[proto.EventSubjectOf(r.Event).String()] = r
				if err := db.Apply([]eventdb.Record{r}); err != nil {
					t.Fatal(err)
				}
			}
			records := make([]eventdb.Record, 0, len(log))
			for _, r := range log {
				records = append(records, r)
			}
			slices.SortFunc(records, func(a, b eventdb.Record) int { return int(a.Seq) - int(b.Seq) })
			anew := open(t, "", clock)
			defer closeDB(t, anew)
			if err := anew.Apply(records); err != nil {
				t.Fatal(err)
			}
			for _, d := range differences(t, db, anew) {
				t.Errorf("%+v", d)
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
	var records []eventdb.Record
	for seq := uint64(1); seq < 400; seq++ {
		records = append(records, eventdb.Record{Seq: seq, Event: w.event()})
	}
	clock := eventdb.WithClock(func() nostr.Timestamp { return 0 })
	whole, broken := open(t, "", clock), open(t, "", clock)
	defer closeDB(t, whole)
	defer closeDB(t, broken)
	for _, db := range []*eventdb.DB{whole, broken} {
		if err := db.Apply(records); err != nil {
			t.Fatal(err)
		}
	}
	if found := differences(t, whole, broken); len(found) > 0 {
		t.Fatalf("two that are the same differ in %+v", found)
	}
	for _, table := range []byte("itakgrdcz") {
		key, restore := broken.Spoil(table, nil)
		found := differences(t, broken, whole)
		if len(found) != 1 || !found[0].Missing || found[0].Extra || found[0].Key != key {
			t.Errorf("table %c lacks an entry: %+v", table, found)
		}
		if found = differences(t, whole, broken); len(found) != 1 || found[0].Missing || !found[0].Extra {
			t.Errorf("table %c has one too many: %+v", table, found)
		}
		restore()
		if table == 'd' || table == 'z' {
			continue // their entries have no value
		}
		_, restore = broken.Spoil(table, []byte("xx"))
		if found = differences(t, broken, whole); len(found) != 1 || found[0].Missing || found[0].Extra {
			t.Errorf("table %c has a wrong entry: %+v", table, found)
		}
		restore()
	}
	broken.Spoil('t', nil)
	broken.Spoil('k', nil)
	n := 0
	if err := broken.Compare(t.Context(), whole, func(eventdb.Difference) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("told of %d after the first: %v", n, err)
	}
}
