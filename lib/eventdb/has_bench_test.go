package eventdb_test

import "testing"

// BenchmarkHas looks up ids, every other one of them stored, as a relay's answer is compared with
// what is there.
func BenchmarkHas(b *testing.B) {
	db := open(b, b.TempDir())
	b.Cleanup(func() { closeDB(b, db) })
	const stored = 50_000
	for seq := db.Seq(); seq < stored; seq = db.Seq() {
		if err := db.Apply(benchRecords(seq+1, benchBatch)); err != nil {
			b.Fatal(err)
		}
	}
	ids := make([]string, 2*4096)
	for i := range ids {
		ids[i] = benchID(ofEvent, uint64(1+i*(stored/4096)))
	}
	for name, has := range map[string]func(id string) (bool, error){
		"index": db.Has,
		"view": func(id string) (bool, error) {
			v := db.View()
			defer v.Close()
			return v.Has(id)
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i, found := 0, 0; b.Loop(); i++ {
				has, err := has(ids[i%len(ids)])
				if err != nil {
					b.Fatal(err)
				}
				if has {
					found++
				}
			}
		})
	}
}
