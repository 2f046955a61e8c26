package holdings

import (
	"iter"
	"time"
)

// waiting is an entry and its place among the clocks.
type waiting struct {
	Entry
	place int
}

// clocks is a heap (container/heap) of entries by the end of their time: however many wait, those
// that are over are found at its top.
type clocks []*waiting

// Len implements heap.Interface.
func (c clocks) Len() int { return len(c) }

// Less implements heap.Interface.
func (c clocks) Less(i, j int) bool { return c[i].ExpiresAt.Before(c[j].ExpiresAt) }

// Swap implements heap.Interface.
func (c clocks) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].place, c[j].place = i, j
}

// Push implements heap.Interface.
func (c *clocks) Push(x any) {
	w := x.(*waiting)
	w.place = len(*c)
	*c = append(*c, w)
}

// Pop implements heap.Interface.
func (c *clocks) Pop() any {
	last := len(*c) - 1
	w := (*c)[last]
	(*c)[last] = nil
	*c = (*c)[:last]
	return w
}

// before returns the entries whose time ended before now, in no order: below one whose time is not
// over, none is.
func (c clocks) before(now time.Time) iter.Seq[*waiting] {
	return func(yield func(*waiting) bool) {
		open := []int{0}
		for len(open) > 0 {
			i := open[len(open)-1]
			open = open[:len(open)-1]
			if i >= len(c) || !now.After(c[i].ExpiresAt) {
				continue
			}
			if !yield(c[i]) {
				return
			}
			open = append(open, 2*i+1, 2*i+2)
		}
	}
}
