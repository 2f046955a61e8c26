package layers

import (
	"crypto/sha256"
	"runtime"
	"sync"
	"weak"

	"tendril.dev/lib/target"
)

// hundred is the ids of one filter as it names them.
type hundred [perFilter]string

// hundreds keeps ids as text once for all connections of a process, for as long as any filter names
// them: relays that have the same repositories are asked for the same ids. It is safe for
// concurrent use.
type hundreds struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[hundred]
}

var texts = hundreds{known: map[[sha256.Size]byte]weak.Pointer[hundred]{}}

// fewestKept is how many ids are worth the room of a hundred. What is found later comes one by one.
const fewestKept = 10

// of gives at most a hundred ids as text. The list may be shared, and is not to be changed.
func (h *hundreds) of(ids []target.ID) []string {
	if len(ids) < fewestKept {
		list := make([]string, len(ids))
		for i, id := range ids {
			list[i] = id.String()
		}
		return list
	}
	sum := sha256.New()
	for i := range ids {
		sum.Write(ids[i][:])
	}
	key := [sha256.Size]byte(sum.Sum(nil))
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.known[key].Value()
	if list == nil {
		list = new(hundred)
		for i, id := range ids {
			list[i] = id.String()
		}
		h.known[key] = weak.Make(list)
		runtime.AddCleanup(list, h.forget, key)
	}
	return list[:len(ids):len(ids)]
}

// forget lets go of ids that no filter names any more, unless another has named them since.
func (h *hundreds) forget(key [sha256.Size]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[key].Value() == nil {
		delete(h.known, key)
	}
}
