package layers

import (
	"crypto/sha256"
	"runtime"
	"sync"
	"weak"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/target"
)

// hundred is the filters of a group that names up to a hundred root events, and their ids as text,
// which all of these filters name.
type hundred struct {
	ids     [perFilter]string
	filters [3]nostr.Filter
}

// hundreds keeps such filters once for all connections of a process, for as long as any of them has
// one: relays that have the same repositories are asked for the same ids. It is safe for concurrent
// use.
type hundreds struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]weak.Pointer[hundred]
}

// rootTags are the tags by which events name a root event.
var rootTags = [3]string{"e", "E", "q"}

var texts = hundreds{known: map[[sha256.Size]byte]weak.Pointer[hundred]{}}

// fewestKept is how many ids are worth the room of a hundred. What is found later comes one by one.
const fewestKept = 10

// of returns the filters that ask for what names at most a hundred root events. Their tags may be
// shared, and are not to be changed.
func (h *hundreds) of(ids []target.ID) []nostr.Filter {
	if len(ids) < fewestKept {
		list := make([]string, len(ids))
		for i, id := range ids {
			list[i] = id.String()
		}
		return tagged(list, rootTags[:]...)
	}
	sum := sha256.New()
	for i := range ids {
		sum.Write(ids[i][:])
	}
	key := [sha256.Size]byte(sum.Sum(nil))
	h.mu.Lock()
	defer h.mu.Unlock()
	group := h.known[key].Value()
	if group == nil {
		group = new(hundred)
		for i, id := range ids {
			group.ids[i] = id.String()
		}
		for i, name := range rootTags {
			group.filters[i].Tags = nostr.TagMap{name: group.ids[:len(ids):len(ids)]}
		}
		h.known[key] = weak.Make(group)
		runtime.AddCleanup(group, h.forget, key)
	}
	return group.filters[:]
}

// forget lets go of ids that no filter names any more, unless another has named them since.
func (h *hundreds) forget(key [sha256.Size]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[key].Value() == nil {
		delete(h.known, key)
	}
}
