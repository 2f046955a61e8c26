package candidates

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
)

// window bounds what is without a verdict, in candidates and in bytes. Where more is offered than
// fits, whoever has the least bytes in it comes next: one that sends large events, or many, slows
// down itself and not the others.
type window struct {
	mu         sync.Mutex
	candidates int // room for more
	bytes      int // room for more
	most       int // bytes of the whole window
	origins    map[string]*origin
	line       line
	arrivals   uint64
}

// origin is one of those who share the window: a client or a relay.
type origin struct {
	name    string
	inside  int // bytes
	count   int // candidates inside
	waiting []*waiter
	index   int // in the line, if any of it wait
}

// waiter is one candidate that does not fit yet.
type waiter struct {
	bytes    int
	arrival  uint64
	admitted chan struct{}
}

func newWindow(candidates, bytes int) *window {
	return &window{candidates: candidates, bytes: bytes, most: bytes, origins: map[string]*origin{}}
}

// enter waits until a candidate of so many bytes fits, until ctx ends or ended is closed. What is
// larger than the whole window enters alone and counts as the whole window.
func (w *window) enter(ctx context.Context, ended <-chan struct{}, name string, bytes int) error {
	bytes = min(bytes, w.most)
	w.mu.Lock()
	o := w.origins[name]
	if o == nil {
		o = &origin{name: name}
		w.origins[name] = o
	}
	if len(w.line) == 0 && w.candidates > 0 && bytes <= w.bytes {
		w.candidates, w.bytes = w.candidates-1, w.bytes-bytes
		o.inside, o.count = o.inside+bytes, o.count+1
		w.mu.Unlock()
		return nil
	}
	me := &waiter{bytes: bytes, admitted: make(chan struct{})}
	w.arrivals++
	me.arrival = w.arrivals
	o.waiting = append(o.waiting, me)
	if len(o.waiting) == 1 {
		heap.Push(&w.line, o)
	}
	w.admit()
	w.mu.Unlock()
	var err error
	select {
	case <-me.admitted:
		return nil
	case <-ended:
		err = ErrEnded
	case <-ctx.Done():
		err = ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-me.admitted: // meanwhile
		w.giveBack(o, 1, me.bytes)
	default:
		w.withdraw(o, me)
	}
	return err
}

// leave makes room for others: so many candidates of one origin are done with, and each took as
// many bytes as it entered with, but no more than [window.most].
func (w *window) leave(name string, candidates, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.giveBack(w.origins[name], candidates, bytes)
}

func (w *window) giveBack(o *origin, candidates, bytes int) {
	o.inside, o.count = o.inside-bytes, o.count-candidates
	w.bytes, w.candidates = w.bytes+bytes, w.candidates+candidates
	if len(o.waiting) > 0 {
		heap.Fix(&w.line, o.index)
	}
	w.forget(o)
	w.admit()
}

// withdraw takes a waiter out of the line; who stood behind it may fit.
func (w *window) withdraw(o *origin, gone *waiter) {
	for i, waits := range o.waiting {
		if waits == gone {
			o.waiting = append(o.waiting[:i:i], o.waiting[i+1:]...)
			break
		}
	}
	if len(o.waiting) == 0 {
		heap.Remove(&w.line, o.index)
	} else {
		heap.Fix(&w.line, o.index)
	}
	w.forget(o)
	w.admit()
}

// admit lets in who comes next, as long as they fit. Nobody overtakes one that does not: it would
// never come in.
func (w *window) admit() {
	for len(w.line) > 0 {
		o := w.line[0]
		next := o.waiting[0]
		if w.candidates == 0 || next.bytes > w.bytes {
			return
		}
		w.candidates, w.bytes = w.candidates-1, w.bytes-next.bytes
		o.inside, o.count, o.waiting = o.inside+next.bytes, o.count+1, o.waiting[1:]
		close(next.admitted)
		if len(o.waiting) == 0 {
			heap.Pop(&w.line)
		} else {
			heap.Fix(&w.line, 0)
		}
	}
}

// forget drops an origin that has nothing here any more.
func (w *window) forget(o *origin) {
	if o.count == 0 && len(o.waiting) == 0 {
		delete(w.origins, o.name)
	}
}

// inside is how much is in the window.
func (w *window) inside() (candidates, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.origins {
		candidates, bytes = candidates+o.count, bytes+o.inside
	}
	return candidates, bytes
}

// line is a heap of the origins that wait: the one with the least bytes inside first, then the one
// that came first.
type line []*origin

func (l line) Len() int { return len(l) }
func (l line) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(l[i].inside, l[j].inside), cmp.Compare(l[i].waiting[0].arrival, l[j].waiting[0].arrival)) < 0
}
func (l line) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}
func (l *line) Push(x any) {
	o := x.(*origin)
	o.index = len(*l)
	*l = append(*l, o)
}
func (l *line) Pop() any {
	old := *l
	o := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	return o
}
