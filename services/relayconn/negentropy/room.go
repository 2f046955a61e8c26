package negentropy

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Room bounds what all connections of a process ask ingest at once, and what they keep of relays'
// messages meanwhile, in bytes. It is safe for concurrent use.
type Room struct {
	free  *semaphore.Weighted // bytes
	turns *semaphore.Weighted // questions
}

// asksAtOnce is how many questions of a process ingest is given at once. It answers four at a time,
// and lets no more wait than 256 of all processes.
const asksAtOnce = 16

// copies is how many times a message lies in memory while it is looked at: as it came, as it goes
// over the bus, and as ids in the answer.
const copies = 4

// roomBytes is enough for eight messages of the largest size at once.
const roomBytes = 16 << 20

// NewRoom returns the room that all connections of a process share.
func NewRoom() *Room {
	return &Room{semaphore.NewWeighted(roomBytes), semaphore.NewWeighted(asksAtOnce)}
}

// ask asks when it is its turn.
func (r *Room) ask(ctx context.Context, question func()) {
	if r.turns.Acquire(ctx, 1) != nil {
		return // nobody waits for an answer any more
	}
	defer r.turns.Release(1)
	question()
}

// take takes room for a message; back gives it back. ok is false if there is none.
func (r *Room) take(message []byte) (back func(), ok bool) {
	n := min(int64(copies*len(message)), roomBytes)
	if !r.free.TryAcquire(n) {
		return nil, false
	}
	return func() { r.free.Release(n) }, true
}
