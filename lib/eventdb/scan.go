package eventdb

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"
)

// match is one answer of a scan. event is nil unless the scan had to load it.
type match struct {
	entry   Entry
	posting posting
	event   *nostr.Event
}

// maxMerged bounds the Pebble iterators that are open at once for one filter. A filter with more values is gathered range by range.
const maxMerged = 64

// checkEvery is how many index entries are passed over between two looks at the context.
const checkEvery = 256

// scan gives every match of the filter to fn, newest first, until fn says stop or the limit is reached.
func (v *View) scan(ctx context.Context, f nostr.Filter, fn func(match) (more bool, err error)) error {
	if v.err != nil {
		return fmt.Errorf("query: %w", v.err)
	}
	p := planOf(f)
	if p.empty {
		return nil
	}
	s := &scanner{view: v, ctx: ctx, filter: f, plan: p}
	var err error
	switch {
	case p.ids != nil:
		err = s.lookUp(fn)
	case len(p.prefixes) > maxMerged:
		err = s.gather(fn)
	default:
		err = s.merge(fn)
	}
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	return nil
}

type scanner struct {
	view   *View
	ctx    context.Context
	filter nostr.Filter
	plan   plan
	seen   int
}

// tick looks at the context now and then.
func (s *scanner) tick() error {
	s.seen++
	if s.seen%checkEvery == 1 {
		return s.ctx.Err()
	}
	return nil
}

// accept checks what the index range does not answer. It loads the event only if it must.
func (s *scanner) accept(m *match) (bool, error) {
	if s.view.expired(m.posting) {
		return false, nil
	}
	if s.plan.kinds != nil {
		if _, ok := slices.BinarySearch(s.plan.kinds, m.posting.kind); !ok {
			return false, nil
		}
	}
	if !s.plan.load {
		return true, nil
	}
	var err error
	if m.event, err = loadAt(s.view.snap, m.posting.seq); err != nil {
		return false, err
	}
	return s.filter.Matches(m.event), nil
}

func (s *scanner) inTime(t nostr.Timestamp) bool {
	return (s.filter.Since == nil || t >= *s.filter.Since) && (s.filter.Until == nil || t <= *s.filter.Until)
}

// bounds are the ends of the part of a range that lies between since and until.
func (s *scanner) bounds(prefix []byte) (lower, upper []byte) {
	lower, upper = prefix, successor(prefix)
	if s.filter.Until != nil {
		lower = appendPlace(slices.Clone(prefix), *s.filter.Until, id{})
	}
	if s.filter.Since != nil {
		var last id
		for i := range last {
			last[i] = 0xff
		}
		upper = append(appendPlace(slices.Clone(prefix), *s.filter.Since, last), 0)
	}
	return lower, upper
}

func (s *scanner) open(prefix []byte) (*pebble.Iterator, error) {
	lower, upper := s.bounds(prefix)
	return s.view.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
}

func matchAt(it *pebble.Iterator) (match, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return match{}, err
	}
	p, err := parsePosting(value)
	return match{entry: placeOf(it.Key()), posting: p}, err
}

// lookUp answers a filter that names ids by point reads.
func (s *scanner) lookUp(fn func(match) (bool, error)) error {
	var found []match
	for _, eid := range s.plan.ids {
		if err := s.tick(); err != nil {
			return err
		}
		p, ok, err := s.view.posting(eid)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		m := match{posting: p, entry: Entry{ID: eid}}
		if m.event, err = loadAt(s.view.snap, p.seq); err != nil {
			return err
		}
		m.entry.CreatedAt = m.event.CreatedAt
		ok, err = s.accept(&m)
		if err != nil {
			return err
		}
		if ok && s.inTime(m.entry.CreatedAt) {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, compareMatches)
	return s.emit(found, fn)
}

// emit gives sorted matches to fn, up to the limit.
func (s *scanner) emit(found []match, fn func(match) (bool, error)) error {
	for i, m := range found {
		if s.filter.Limit > 0 && i == s.filter.Limit {
			return nil
		}
		if more, err := fn(m); err != nil || !more {
			return err
		}
	}
	return nil
}

// merge walks all ranges at once, newest first, and stops as soon as enough was found.
func (s *scanner) merge(fn func(match) (bool, error)) (err error) {
	var heads ranges
	defer func() {
		for _, it := range heads {
			if cerr := it.Close(); err == nil {
				err = cerr
			}
		}
	}()
	for _, prefix := range s.plan.prefixes {
		it, err := s.open(prefix)
		if err != nil {
			return err
		}
		if !it.First() {
			if err := it.Close(); err != nil {
				return err
			}
			continue
		}
		heads = append(heads, it)
	}
	heap.Init(&heads)
	var last Entry
	for n := 0; len(heads) > 0; {
		if err := s.tick(); err != nil {
			return err
		}
		m, err := matchAt(heads[0])
		if err != nil {
			return err
		}
		repeated := s.plan.overlap && s.seen > 1 && m.entry == last
		last = m.entry
		if !repeated {
			ok, err := s.accept(&m)
			if err != nil {
				return err
			}
			if ok {
				if more, err := fn(m); err != nil || !more {
					return err
				}
				if n++; n == s.filter.Limit {
					return nil
				}
			}
		}
		if err := heads.step(); err != nil {
			return err
		}
	}
	return nil
}

// ranges is a heap of iterators, the one at the best place first.
type ranges []*pebble.Iterator

func (r ranges) Len() int { return len(r) }
func (r ranges) Less(i, j int) bool {
	a, b := r[i].Key(), r[j].Key()
	return bytes.Compare(a[len(a)-placeLen:], b[len(b)-placeLen:]) < 0
}
func (r ranges) Swap(i, j int) { r[i], r[j] = r[j], r[i] }
func (r *ranges) Push(x any)   { *r = append(*r, x.(*pebble.Iterator)) }
func (r *ranges) Pop() any {
	old := *r
	last := old[len(old)-1]
	*r = old[:len(old)-1]
	return last
}

// step moves the best iterator on and closes it at its end.
func (r *ranges) step() error {
	if (*r)[0].Next() {
		if len(*r) > 1 {
			heap.Fix(r, 0)
		}
		return nil
	}
	return heap.Pop(r).(*pebble.Iterator).Close()
}

// gather answers a filter with very many values: range by range with one iterator, keeping the best matches so far. With a limit it keeps
// no more than that many, and leaves a range where it gets worse than all of them.
func (s *scanner) gather(fn func(match) (bool, error)) error {
	best := &worstFirst{}
	known := map[[32]byte]bool{}
	for _, prefix := range s.plan.prefixes {
		if err := s.gatherRange(prefix, best, known); err != nil {
			return err
		}
	}
	found := []match(*best)
	slices.SortFunc(found, compareMatches)
	return s.emit(found, fn)
}

func (s *scanner) gatherRange(prefix []byte, best *worstFirst, known map[[32]byte]bool) (err error) {
	it, err := s.open(prefix)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	for valid := it.First(); valid; valid = it.Next() {
		if err := s.tick(); err != nil {
			return err
		}
		m, err := matchAt(it)
		if err != nil {
			return err
		}
		full := s.filter.Limit > 0 && len(*best) == s.filter.Limit
		if full && compareMatches(m, (*best)[0]) >= 0 {
			return nil
		}
		if known[m.entry.ID] {
			continue
		}
		ok, err := s.accept(&m)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		m.event = nil // loaded again if it is asked for: what is kept must stay small
		if full {
			delete(known, (*best)[0].entry.ID)
			(*best)[0] = m
			heap.Fix(best, 0)
		} else {
			heap.Push(best, m)
		}
		known[m.entry.ID] = true
	}
	return it.Error()
}

// worstFirst is a heap with the oldest match on top.
type worstFirst []match

func (w worstFirst) Len() int           { return len(w) }
func (w worstFirst) Less(i, j int) bool { return compareMatches(w[i], w[j]) > 0 }
func (w worstFirst) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *worstFirst) Push(x any)        { *w = append(*w, x.(match)) }
func (w *worstFirst) Pop() any {
	old := *w
	last := old[len(old)-1]
	*w = old[:len(old)-1]
	return last
}

// compareMatches sorts newest first, and by id among equals (NIP-01).
func compareMatches(a, b match) int {
	switch {
	case a.entry.CreatedAt > b.entry.CreatedAt:
		return -1
	case a.entry.CreatedAt < b.entry.CreatedAt:
		return 1
	}
	return bytes.Compare(a.entry.ID[:], b.entry.ID[:])
}
