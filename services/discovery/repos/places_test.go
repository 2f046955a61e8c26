package repos

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"tendril.dev/services/discovery/wanted"
)

// TestPlacesAreWhatAMapSays: places come and go, of ids most of which are alike to the table and of
// ids as they are. It gives all places of an id, sorted, and of others only those of ids like it.
func TestPlacesAreWhatAMapSays(t *testing.T) {
	t.Parallel()
	for name, hash := range map[string]func(wanted.Short) uint64{
		"alike": func(id wanted.Short) uint64 { return uint64(id[15] % 3) }, "as they are": newPlaces().hash,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(1, 2))
			table := newPlaces()
			table.hash = hash
			type pair struct {
				id     wanted.Short
				number uint32
			}
			model, most, count := map[pair]byte{}, 0, 0
			for step := range 60_000 {
				var p pair
				binary.BigEndian.PutUint16(p.id[14:], uint16(rnd.IntN(300)))
				p.number = uint32(rnd.IntN(4)) * (mostNumbers / 4)
				switch _, known := model[p]; {
				case !known && step%20_000 < 12_000: // more come for a while, then more go
					author := byte(rnd.IntN(3))
					model[p] = author
					table.add(p.id, placeOf(&repository{number: p.number}, author))
					count++
				case known:
					delete(model, p)
					table.remove(p.id, p.number)
					count--
				}
				most = max(most, count)
				if table.count != count {
					t.Fatalf("%d: it counts %d, want %d", step, table.count, count)
				}
				if step%50 == 0 {
					list := slices.Collect(table.like(p.id))
					if !slices.IsSorted(list) {
						t.Fatalf("%d: not sorted: %x", step, list)
					}
					for other, author := range model {
						if hash(other.id) != hash(p.id) {
							continue
						}
						// Its author may have been forgotten, and is never another.
						n := slices.Index(list, place(other.number<<8)|place(author))
						if n < 0 {
							n = slices.Index(list, place(other.number<<8)|anybody)
						}
						if n < 0 {
							t.Fatalf("%d: %v by %d is not among %x", step, other, author, list)
						}
						list = slices.Delete(list, n, n+1)
					}
					if len(list) > 0 {
						t.Fatalf("%d: %x are nobody's", step, list)
					}
				}
			}
			for p := range model {
				table.remove(p.id, p.number)
			}
			room := 0
			for _, part := range table.parts {
				room += cap(part)
			}
			if most < 600 || table.count != 0 || entries(table) != 0 || room > 64*len(table.parts) {
				t.Errorf("of %d there are %d, %d counted, in room for %d", most, entries(table), table.count, room)
			}
		})
	}
}

// TestATableTakesLittle more than 6 bytes for each place, and what is like an id is nearly always
// the id itself.
func TestATableTakesLittle(t *testing.T) {
	t.Parallel()
	const all = 200_000
	table, room, others := newPlaces(), 0, 0
	id := func(n int) (id wanted.Short) {
		binary.BigEndian.PutUint64(id[:], uint64(n)) // as somebody might choose them
		return id
	}
	for n := range all {
		table.add(id(n), place(n)<<8)
	}
	for _, part := range table.parts {
		room += cap(part)
	}
	if room > all+all/7 {
		t.Errorf("room for %d places for %d", room, all)
	}
	for n := range all {
		for p := range table.like(id(n)) {
			if p.number() != uint32(n) {
				others++
			}
		}
	}
	// One in 65,536 for each of the others in its part.
	if want := all / segments * all >> 16; others > 2*want {
		t.Errorf("%d ids are taken for others, want about %d", others, want)
	}
}
