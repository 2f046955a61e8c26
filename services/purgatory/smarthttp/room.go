package smarthttp

import (
	"sync"

	"tendril.dev/services/purgatory/repository"
)

// room is an amount of something that clients share: requests at once, bytes on disk. One client
// may have as much as is still free, so that however many take all that they can, something is left
// for the next. Clients who are not known may have all.
type room struct {
	mu   sync.Mutex
	free int64
	has  map[string]int64 // by client
}

func newRoom(size int64) *room { return &room{free: size, has: map[string]int64{}} }

// take takes n. The error is ErrBusy, or ErrShare where others may have what this client may not.
func (r *room) take(client string, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case n > r.free:
		return repository.ErrBusy
	case client != "" && r.has[client]+n > r.free-n:
		return repository.ErrShare
	}
	r.free -= n
	r.has[client] += n
	return nil
}

// give gives n back.
func (r *room) give(client string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free += n
	if r.has[client] -= n; r.has[client] == 0 {
		delete(r.has, client)
	}
}

// holding is what one request has of a room.
type holding struct {
	room   *room
	client string
	n      int64
}

// grow takes n more.
func (h *holding) grow(n int64) error {
	err := h.room.take(h.client, n)
	if err == nil {
		h.n += n
	}
	return err
}

// shrink gives n back.
func (h *holding) shrink(n int64) {
	h.room.give(h.client, n)
	h.n -= n
}

// end gives everything back.
func (h *holding) end() {
	h.shrink(h.n)
}
