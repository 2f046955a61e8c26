package negentropy

import "golang.org/x/sync/semaphore"

// Room bounds what all connections of a process keep at once of relays' messages while these are
// looked at, in bytes. It is safe for concurrent use.
type Room struct {
	free *semaphore.Weighted
}

// copies is how many times a message lies in memory while it is looked at: as it came, as it goes
// over the bus, and as ids in the answer.
const copies = 4

// roomBytes is enough for eight messages of the largest size at once.
const roomBytes = 16 << 20

// NewRoom returns the room that all connections of a process share.
func NewRoom() *Room { return &Room{semaphore.NewWeighted(roomBytes)} }

// take takes room for a message; back gives it back. ok is false if there is none.
func (r *Room) take(message []byte) (back func(), ok bool) {
	n := min(int64(copies*len(message)), roomBytes)
	if !r.free.TryAcquire(n) {
		return nil, false
	}
	return func() { r.free.Release(n) }, true
}
