// Package ordered keeps things in an order: what comes first is found at once, and any of them can
// leave.
package ordered

import "container/heap"

// Member of a heap: it knows which of two comes first, and keeps its place in the heap.
type Member[T any] interface {
	Before(other T) bool
	Place() *int // 0: it is in no heap
}

// Heap is a heap of members. The zero value is empty.
type Heap[T Member[T]] struct{ items []T }

// Put takes a member in, or finds its new place.
func (o *Heap[T]) Put(item T) {
	if at := *item.Place(); at > 0 {
		heap.Fix(o, at-1)
	} else {
		heap.Push(o, item)
	}
}

// Remove takes a member out if it is there.
func (o *Heap[T]) Remove(item T) {
	if at := *item.Place(); at > 0 {
		heap.Remove(o, at-1)
	}
}

// First is the member that comes first; false: there is none.
func (o *Heap[T]) First() (first T, ok bool) {
	if len(o.items) == 0 {
		return first, false
	}
	return o.items[0], true
}

// Len, Less, Swap, Push and Pop are those of heap.Interface.

func (o *Heap[T]) Len() int { return len(o.items) }

func (o *Heap[T]) Less(i, j int) bool { return o.items[i].Before(o.items[j]) }

func (o *Heap[T]) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	*o.items[i].Place(), *o.items[j].Place() = i+1, j+1
}

func (o *Heap[T]) Push(item any) {
	o.items = append(o.items, item.(T))
	*item.(T).Place() = len(o.items)
}

func (o *Heap[T]) Pop() any {
	last := len(o.items) - 1
	item := o.items[last]
	var none T
	o.items[last], o.items = none, o.items[:last]
	*item.Place() = 0
	return item
}
