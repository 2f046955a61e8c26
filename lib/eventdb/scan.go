package eventdb

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
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

// maxMerged bounds the Pebble iterators that are open at once for one filter, and again those for the kinds that it leaps to. A filter with more
// values is gathered range by range.
const maxMerged = 64

const (
	// checkEvery is how many steps are taken between two looks at the context.
	checkEvery = 256
	// loadSteps is what loading an event to check it counts, in steps from one index entry to the next.
	loadSteps = 8
)

// ErrTooBroad: a query of a view made by [View.Within] took more steps than that allows.
var ErrTooBroad = errors.New("the filter is too broad")

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
	case len(p.conditions[0]) > maxMerged:
		err = s.gather(fn)
	default:
		err = s.intersect(fn)
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
	steps  int // taken so far
	check  int // look at the context at this step
}

// tick counts steps and looks at the context now and then.
func (s *scanner) tick(steps int) error {
	s.steps += steps
	if s.view.within > 0 && s.steps > s.view.within {
		return ErrTooBroad
	}
	if s.steps >= s.check {
		s.check = s.steps + checkEvery
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
	if m.event == nil {
		err := s.tick(loadSteps)
		if err != nil {
			return false, err
		}
		if m.event, err = loadAt(s.view.reads, m.posting.seq); err != nil {
			return false, err
		}
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
		if err := s.tick(loadSteps); err != nil {
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
		if m.event, err = loadAt(s.view.reads, p.seq); err != nil {
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

// patience is how many postings in a row may be of wrong kinds before the walk leaps to where one of the right kinds may be. A step costs a
// fraction of what a leap does, and most who ask for kinds find them at every turn.
const patience = 256

// intersect walks all conditions of the plan at once, newest first, and stops as soon as enough was found.
func (s *scanner) intersect(fn func(match) (bool, error)) (err error) {
	var unions []*union
	defer func() {
		for _, u := range unions {
			err = errors.Join(err, u.close())
		}
	}()
	for _, ranges := range s.plan.conditions {
		u, err := s.unite(ranges)
		unions = append(unions, u)
		if err != nil {
			return err
		}
	}
	for found, misses := 0, 0; ; {
		met, err := s.meet(unions)
		if err != nil || !met {
			return err
		}
		m, err := unions[0].match()
		if err != nil {
			return err
		}
		ok, err := s.accept(&m)
		if err != nil {
			return err
		}
		if misses++; ok {
			if more, err := fn(m); err != nil || !more {
				return err
			}
			if found++; found == s.filter.Limit {
				return nil
			}
			misses = 0
		}
		if err := unions[0].next(); err != nil {
			return err
		}
		if misses == patience && s.plan.leap != nil {
			// From here on the kinds are walked like any other condition.
			u, err := s.unite(s.plan.leap)
			unions, s.plan.leap = append(unions, u), nil
			if err != nil {
				return err
			}
		}
	}
}

// unite opens the union of ranges; it has to be closed even after an error.
func (s *scanner) unite(ranges [][]byte) (*union, error) {
	u := &union{}
	for _, prefix := range ranges {
		it, err := s.open(prefix)
		if err != nil {
			return u, err
		}
		if err := u.add(prefix, it); err != nil {
			return u, err
		}
	}
	return u, nil
}

// meet moves the unions on to the next place where all of them stand. It is false at the end of one of them. None is walked step by step:
// each leaps to where another stands, so that this takes about as many steps as the smallest of them has entries.
func (s *scanner) meet(unions []*union) (bool, error) {
	lead := unions[0]
next:
	for {
		if err := s.tick(1); err != nil {
			return false, err
		}
		place := lead.place()
		if place == nil {
			return false, nil
		}
		for _, u := range unions[1:] {
			if err := u.seek(place); err != nil {
				return false, err
			}
			at := u.place()
			if at == nil {
				return false, nil
			}
			if !bytes.Equal(at, place) {
				if err := lead.seek(at); err != nil {
					return false, err
				}
				continue next
			}
		}
		return true, nil
	}
}

// gather answers a filter with very many values: range by range with one iterator, keeping the best matches so far. With a limit it keeps
// no more than that many, and leaves a range where it gets worse than all of them.
func (s *scanner) gather(fn func(match) (bool, error)) (err error) {
	ranges := s.plan.conditions[0]
	it, err := s.open(ranges[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	best := &worstFirst{}
	known := map[[32]byte]bool{}
	for _, prefix := range ranges {
		if err := s.tick(1); err != nil {
			return err
		}
		it.SetBounds(s.bounds(prefix))
		if err := s.gatherRange(it, best, known); err != nil {
			return err
		}
	}
	found := []match(*best)
	slices.SortFunc(found, compareMatches)
	return s.emit(found, fn)
}

func (s *scanner) gatherRange(it *pebble.Iterator, best *worstFirst, known map[[32]byte]bool) error {
	for valid := it.First(); valid; valid = it.Next() {
		if err := s.tick(1); err != nil {
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
