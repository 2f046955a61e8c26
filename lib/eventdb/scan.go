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

// maxMerged bounds the Pebble iterators that are open at once for one filter, and again those for
// the kinds that it leaps to. A filter with more values is gathered range by range.
const maxMerged = 64

// What a query costs is counted in steps: of an iterator from one index entry to another.
const (
	// checkEvery is how many steps are taken between two looks at the context.
	checkEvery = 256
	// loadSteps is what a look-up of an event counts, however small the event is.
	loadSteps = 8
	// readPerStep and decodedPerStep are how many bytes of JSON count one step more.
	readPerStep    = 512
	decodedPerStep = 64
)

// ErrTooBroad: a query of a view made by [View.Within] took more steps than that allows.
var ErrTooBroad = errors.New("the filter is too broad")

// scanner answers one filter, once.
type scanner struct {
	view   *View
	ctx    context.Context
	filter nostr.Filter
	plan   plan
	rest   *matcher // of what the plan leaves to be checked in the event; nil: nothing
	steps  int      // taken so far
	check  int      // look at the context at this step
}

func (v *View) scanner(ctx context.Context, f nostr.Filter) *scanner {
	s := &scanner{view: v, ctx: ctx, filter: f, plan: planOf(f)}
	if s.plan.load {
		s.rest = newMatcher(f)
	}
	return s
}

// scan gives every match of the filter to fn, newest first, until fn says stop or the limit is
// reached.
func (s *scanner) scan(fn func(match) (more bool, err error)) error {
	if s.view.err != nil {
		return fmt.Errorf("query: %w", s.view.err)
	}
	var err error
	switch {
	case s.plan.empty:
	case s.plan.ids != nil:
		err = s.lookUp(fn)
	case len(s.plan.conditions[0]) > maxMerged:
		err = s.gather(fn)
	default:
		err = s.intersect(fn)
	}
	if err != nil {
		return fmt.Errorf("query: %w", err)
	}
	return nil
}

// tick counts steps and looks at the context now and then.
func (s *scanner) tick(steps int) error {
	s.steps += steps
	if s.view.within > 0 && s.steps > s.view.within {
		return ErrTooBroad
	}
	if s.steps >= s.check {
		s.check = s.steps + checkEvery
		if s.view.yield != nil {
			return s.view.yield(s.ctx)
		}
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
	if s.rest == nil {
		return true, nil
	}
	if err := s.load(m); err != nil {
		return false, err
	}
	return s.rest.matches(m.event), nil
}

// read appends the JSON of a match to buf.
func (s *scanner) read(m match, buf []byte) ([]byte, error) {
	if err := s.tick(loadSteps); err != nil {
		return nil, err
	}
	raw, err := loadRaw(s.view.reads, m.posting.seq, buf)
	if err != nil {
		return nil, err
	}
	return raw, s.tick((len(raw) - len(buf)) / readPerStep)
}

// load makes sure that a match has its event.
func (s *scanner) load(m *match) error {
	if m.event != nil {
		return nil
	}
	raw, err := s.read(*m, nil)
	if err != nil {
		return err
	}
	if err := s.tick(len(raw) / decodedPerStep); err != nil {
		return err
	}
	m.event, err = decodeAt(raw, m.posting.seq)
	return err
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
	m := match{entry: placeOf(it.Key())}
	m.posting, err = parsePosting(value)
	m.entry.Kind = int(m.posting.kind)
	return m, err
}

// lookUp answers a filter that names ids by point reads.
func (s *scanner) lookUp(fn func(match) (bool, error)) error {
	var found []match
	for _, eid := range s.plan.ids {
		if err := s.tick(loadSteps); err != nil {
			return err
		}
		p, err := postingOf(s.view.reads, eid)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		m := match{posting: p, entry: Entry{ID: eid, Kind: int(p.kind)}}
		if err := s.load(&m); err != nil {
			return err
		}
		m.entry.CreatedAt = m.event.CreatedAt
		ok, err := s.accept(&m)
		if err != nil {
			return err
		}
		if ok && s.inTime(m.entry.CreatedAt) {
			found = append(found, m.small())
		}
	}
	slices.SortFunc(found, compareMatches)
	return s.emit(found, fn)
}

// small is a match without its event, which is loaded again if it is asked for: one of many that
// are kept.
func (m match) small() match { m.event = nil; return m }

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

// patience is how many postings in a row may be of wrong kinds before the walk leaps to where one
// of the right kinds may be. A step costs a fraction of what a leap does, and most who ask for
// kinds find them at every turn.
const patience = 256

// intersect walks all conditions of the plan at once, newest first, and stops as soon as enough was
// found.
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
		moved, err := unions[0].next()
		if err != nil {
			return err
		}
		if err := s.tick(moved); err != nil {
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
	return u, s.tick(len(ranges))
}

// meet moves the unions on to the next place where all of them stand. It is false at the end of one
// of them. None is walked step by step: each leaps to where another stands, so that this takes
// about as many leaps as the smallest of them has entries.
func (s *scanner) meet(unions []*union) (bool, error) {
	lead := unions[0]
next:
	for {
		place := lead.place()
		if place == nil {
			return false, nil
		}
		for _, u := range unions[1:] {
			if err := s.seek(u, place); err != nil {
				return false, err
			}
			at := u.place()
			if at == nil {
				return false, nil
			}
			if !bytes.Equal(at, place) {
				if err := s.seek(lead, at); err != nil {
					return false, err
				}
				continue next
			}
		}
		return true, nil
	}
}

func (s *scanner) seek(u *union, place []byte) error {
	moved, err := u.seek(place)
	if err != nil {
		return err
	}
	return s.tick(moved)
}

// gather answers a filter with very many values: range by range with one iterator, keeping the best
// matches so far. With a limit it keeps no more than that many, and leaves a range where it gets
// worse than all of them.
func (s *scanner) gather(fn func(match) (bool, error)) error {
	best := &worstFirst{}
	known := map[[32]byte]bool{}
	if err := s.eachRange(func(it *pebble.Iterator) error { return s.gatherRange(it, best, known) }); err != nil {
		return err
	}
	found := []match(*best)
	slices.SortFunc(found, compareMatches)
	return s.emit(found, fn)
}

// eachRange opens the ranges of the first condition one after the other, with one iterator.
func (s *scanner) eachRange(fn func(it *pebble.Iterator) error) (err error) {
	ranges := s.plan.conditions[0]
	it, err := s.open(ranges[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for _, prefix := range ranges {
		if err := s.tick(1); err != nil {
			return err
		}
		it.SetBounds(s.bounds(prefix))
		if err := fn(it); err != nil {
			return err
		}
	}
	return nil
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
		if full {
			delete(known, (*best)[0].entry.ID)
			(*best)[0] = m.small()
			heap.Fix(best, 0)
		} else {
			heap.Push(best, m.small())
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

func compareMatches(a, b match) int { return a.entry.Compare(b.entry) }
