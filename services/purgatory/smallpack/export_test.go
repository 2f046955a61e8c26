package smallpack

import "encoding/binary"

// Of is a set of one pack, which need not lie on a disk.
func Of(index, data []byte) (*Set, error) {
	p, err := parse(index, data)
	return &Set{packs: []pack{p}}, err
}

// IDs are those of all objects of the set, each once.
func (s *Set) IDs() (ids []ID) {
	seen := map[ID]bool{}
	for _, p := range s.packs {
		for i := range p.count() {
			if id := ID(p.ids[i*idBytes:]); !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// Index writes an index of objects that begin at these offsets.
func Index(ids []ID, offsets []uint32) []byte {
	index := []byte("\xfftOc\x00\x00\x00\x02")
	for range 256 {
		index = binary.BigEndian.AppendUint32(index, uint32(len(ids)))
	}
	for _, id := range ids {
		index = append(index, id[:]...)
	}
	index = append(index, make([]byte, 4*len(ids))...)
	for _, offset := range offsets {
		index = binary.BigEndian.AppendUint32(index, offset)
	}
	return append(index, make([]byte, 40)...)
}
