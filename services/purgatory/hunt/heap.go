package hunt

import "container/heap"

// member of a heap: it knows which of two comes first, and keeps its place in the heap.
type member[T any] interface {
	before(other T) bool
	place() *int // 0: it is in no heap
}

// ordered is a heap of members; what comes first is found at once, and any member can leave.
type ordered[T member[T]] struct{ items []T }

// put takes a member in, or finds its new place.
func (o *ordered[T]) put(item T) {
	if at := *item.place(); at > 0 {
		heap.Fix(o, at-1)
	} else {
		heap.Push(o, item)
	}
}

// remove takes a member out if it is there.
func (o *ordered[T]) remove(item T) {
	if at := *item.place(); at > 0 {
		heap.Remove(o, at-1)
	}
}

// first is the member that comes first; false: there is none.
func (o *ordered[T]) first() (first T, ok bool) {
	if len(o.items) == 0 {
		return first, false
	}
	return o.items[0], true
}

// Len, Less, Swap, Push and Pop are those of heap.Interface.

func (o *ordered[T]) Len() int { return len(o.items) }

func (o *ordered[T]) Less(i, j int) bool { return o.items[i].before(o.items[j]) }

func (o *ordered[T]) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	*o.items[i].place(), *o.items[j].place() = i+1, j+1
}

func (o *ordered[T]) Push(item any) {
	o.items = append(o.items, item.(T))
	*item.(T).place() = len(o.items)
}

func (o *ordered[T]) Pop() any {
	last := len(o.items) - 1
	item := o.items[last]
	var none T
	o.items[last], o.items = none, o.items[:last]
	*item.place() = 0
	return item
}
