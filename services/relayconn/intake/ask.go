package intake

import (
	"context"
	"sync"
	"time"

	"tendril.dev/proto"
)

// Store is asked which events are stored.
type Store interface {
	// Has reports of each id whether an event of it is stored. It asks until it is told, or ctx
	// ends.
	Has(ctx context.Context, ids [][32]byte) ([]bool, error)
}

const (
	// perQuestion is how many events are asked about at once.
	perQuestion = 256
	// gather is how long events of the past wait for others to be asked about with. What is live
	// does not wait unless liveAtOnce questions are under way.
	gather = 5 * time.Millisecond
	// liveAtOnce and pastAtOnce are how many questions are under way at most.
	liveAtOnce, pastAtOnce = 2, 4
)

// asks is what must be asked about, of one class. The lock of the intake guards it.
type asks struct {
	waiting []*flight
	some    chan struct{} // of capacity 1: something waits
	many    chan struct{} // of capacity 1: enough for a question waits
}

func newAsks() asks { return asks{some: make(chan struct{}, 1), many: make(chan struct{}, 1)} }

func (a *asks) add(f *flight) {
	a.waiting = append(a.waiting, f)
	wake(a.some)
	if len(a.waiting) >= perQuestion {
		wake(a.many)
	}
}

// take takes what the next question is about. A flight that another question is about already is
// passed over.
func (a *asks) take() (batch []*flight) {
	n := 0
	for ; n < len(a.waiting) && len(batch) < perQuestion; n++ {
		if f := a.waiting[n]; f.stage == unasked {
			f.stage = asked
			batch = append(batch, f)
		}
	}
	clear(a.waiting[:n])
	if a.waiting = a.waiting[n:]; len(a.waiting) == 0 {
		a.waiting = nil // lets go of the array
		return batch
	}
	wake(a.some)
	return batch
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// askAll asks about everything of a class until the intake ends.
func (i *Intake) askAll(c class) {
	atOnce := pastAtOnce
	if c == live {
		atOnce = liveAtOnce
	}
	a, slots := &i.asks[c], make(chan struct{}, atOnce)
	var under sync.WaitGroup
	defer under.Wait()
	for i.await(a.some) {
		if c == past && !i.gather(a) {
			return
		}
		select {
		case slots <- struct{}{}:
		case <-i.life.Done():
			return
		}
		i.mu.Lock()
		batch := a.take()
		i.mu.Unlock()
		if len(batch) == 0 {
			<-slots
			continue
		}
		under.Go(func() {
			i.ask(batch)
			<-slots
		})
	}
}

// await waits for a word on a channel; false: the intake has ended.
func (i *Intake) await(word <-chan struct{}) bool {
	select {
	case <-word:
		return true
	case <-i.life.Done():
		return false
	}
}

// gather waits until there is enough for a question, or for so long; false: the intake has ended.
func (i *Intake) gather(a *asks) bool {
	i.mu.Lock()
	enough := len(a.waiting) >= perQuestion
	i.mu.Unlock()
	if enough {
		return true
	}
	timer := time.NewTimer(gather)
	defer timer.Stop()
	select {
	case <-a.many:
	case <-timer.C:
	case <-i.life.Done():
		return false
	}
	return true
}

// ask asks about some flights. What is stored ends; the rest must be checked.
func (i *Intake) ask(batch []*flight) {
	ids := make([][32]byte, len(batch))
	for n, f := range batch {
		ids[n] = f.key.id
	}
	has, err := i.o.Stored.Has(i.life, ids)
	if i.life.Err() != nil {
		return // Run ends them
	}
	if err != nil {
		has = make([]bool, len(batch)) // then ingest says what is stored
	}
	var queues []*queue
	for n, f := range batch {
		queues = append(queues, i.told(f, has[n])...)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, q := range queues {
		i.lines.of[q.class].push(q)
	}
	i.lines.wake.Broadcast()
}

// told notes whether a flight's event is stored, and gives the queues in which something may be
// checked now.
func (i *Intake) told(f *flight, stored bool) (queues []*queue) {
	i.mu.Lock()
	for _, w := range f.waiters {
		if len(queues) == 0 || queues[len(queues)-1] != w.queue {
			queues = append(queues, w.queue)
		}
	}
	if !stored {
		f.stage = unchecked
		i.mu.Unlock()
		return queues
	}
	i.stored.Add(f.key.id)
	id, kind := f.event.ID, f.event.Kind
	i.mu.Unlock()
	i.o.Metrics.known()
	i.end(f, Result{Verdict: proto.Verdict{ID: id, Kind: kind, Outcome: proto.Duplicate}, Known: true})
	return queues
}
