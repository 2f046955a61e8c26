package wanted

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
)

// sum is a SHA-256.
type sum [sha256.Size]byte

// Sum tells targets apart without looking at them: it is the same for the same target, and for no
// other, as 64 hex digits. It is empty of a target that does not exist. It costs what the
// repositories are, and what the root events are of those that are not [Repo.Summed].
func (t Target) Sum() string {
	if !t.Exists() {
		return ""
	}
	h := sha256.New()
	writeText(h, t.URL)
	writeNumber(h, map[bool]int{true: 1}[t.Bootstrap])
	for _, ref := range slices.Sorted(maps.Keys(t.Repos)) {
		writeText(h, ref)
		s := t.Repos[ref].Summed().sum
		h.Write(s[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Summed is the same, with its sum worked out for all targets that share it.
func (r Repo) Summed() Repo {
	if r.sum != nil {
		return r
	}
	h := sha256.New()
	writeText(h, string(r.Level))
	writeNumber(h, len(r.Authors))
	for _, a := range r.Authors {
		writeText(h, a)
	}
	for i := range r.Roots {
		h.Write(r.Roots[i][:])
	}
	r.sum = new(sum)
	h.Sum(r.sum[:0])
	return r
}

// writeNumber and writeText write what cannot be taken for anything else.
func writeNumber(h hash.Hash, n int) {
	h.Write(binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(n)))
}

func writeText(h hash.Hash, s string) {
	writeNumber(h, len(s))
	h.Write([]byte(s))
}
