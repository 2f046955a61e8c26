package eventdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
)

// match is one answer of a scan. raw and event are nil unless the scan had to read them; raw is
// valid until the scan goes on.
type match struct {
	Entry
	raw   []byte
	event *nostr.Event
}

// MaxMerged bounds the Pebble iterators that are open at once for one filter. A filter with more
// values is gathered range by range.
const MaxMerged = 64

// What a query costs is counted in steps: of an iterator from one index entry to another.
const (
	// checkEvery is how many steps are taken between two looks at the context.
	checkEvery = 256
	// loadSteps is what reading an event counts, however small the event is.
	loadSteps = 8
	// readPerStep and decodedPerStep are how many bytes of JSON count one step more.
	readPerStep    = 512
	decodedPerStep = 64
)

// ErrTooBroad ends a query of a view made by [View.Within] that took more steps than that allows.
// What was given until then is right, and the newest; older matches may exist.
var ErrTooBroad = errors.New("the filter is too broad")

// scanner answers one filter, once.
type scanner struct {
	view   *View
	ctx    context.Context
	filter nostr.Filter
	plan   plan
	rest   *matcher         // of what the plan leaves to be checked in the event; nil: nothing
	events *pebble.Iterator // over all events; nil: none was read yet
	key    []byte           // of the event that is read
	at     match            // what a walk stands at
	worst  *match           // of the limit's best that were gathered; nil: there are not so many
	steps  int              // taken so far
	check  int              // look at the context at this step
}

// scanner begins to answer a filter.
func (v *View) scanner(ctx context.Context, f nostr.Filter) func() *scanner {
	return func() *scanner {
		s := &scanner{view: v, ctx: ctx, filter: f, plan: planOf(f)}
		if s.plan.load {
			s.rest = newMatcher(f)
		}
		return s
	}
}

func (s *scanner) close() error {
	if s.events == nil {
		return nil
	}
	return s.events.Close()
}

// scan gives every match of the filter to fn, newest first, until fn says stop or the limit is
// reached.
func (s *scanner) scan(fn func(*match) (more bool, err error)) (err error) {
	switch {
	case s.view.reads.Reader == nil:
		err = ErrClosed
	case s.plan.empty:
	case s.plan.ids != nil:
		err = s.gather(fn, s.lookUp)
	case len(s.plan.conditions[0]) > MaxMerged:
		err = s.gather(fn, s.walk)
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

// accept checks what the index range does not answer. It reads the event only if it must.
func (s *scanner) accept(m *match) (bool, error) {
	if _, ok := slices.BinarySearch(s.plan.kinds, m.Kind); !ok && s.plan.kinds != nil || !s.view.serves(m.Entry) {
		return false, nil
	}
	if s.rest == nil {
		return true, nil
	}
	if err := s.decode(m); err != nil {
		return false, err
	}
	return s.rest.matches(m.event), nil
}

// read makes sure that a match has its JSON. All events of a scan are read by one iterator, which
// finds the next one with few steps: what matches comes in the order of the events.
func (s *scanner) read(m *match) (err error) {
	if err := s.tick(loadSteps + len(m.raw)/readPerStep); err != nil || m.raw != nil {
		return err
	}
	if s.events == nil {
		s.events, err = s.view.reads.NewIter(&pebble.IterOptions{LowerBound: []byte{tableEvent},
			UpperBound: []byte{tableEvent + 1}})
		if err != nil {
			return err
		}
	}
	s.key = m.appendPlace(append(s.key[:0], tableEvent))
	var value []byte
	if s.events.SeekGE(s.key) && bytes.Equal(s.events.Key(), s.key) {
		value, err = s.events.ValueAndErr()
	} else {
		err = errors.Join(s.events.Error(), errLost)
	}
	if err == nil {
		m.raw, err = m.readPosting(value)
	}
	if err != nil {
		return fmt.Errorf("load event %x: %w", m.ID, err)
	}
	return s.tick(len(m.raw) / readPerStep)
}

// decode makes sure that a match has its event.
func (s *scanner) decode(m *match) error {
	if m.event != nil {
		return nil
	}
	if err := s.read(m); err != nil {
		return err
	}
	if err := s.tick(len(m.raw) / decodedPerStep); err != nil {
		return err
	}
	m.event = new(nostr.Event)
	if err := m.event.UnmarshalJSON(m.raw); err != nil {
		return fmt.Errorf("decode event %x: %w", m.ID, err)
	}
	return nil
}

// bounds are the ends of the part of a range that lies between since and until.
func (s *scanner) bounds(prefix []byte) (lower, upper []byte) {
	lower, upper = prefix, successor(prefix)
	if s.filter.Until != nil {
		lower = Entry{CreatedAt: *s.filter.Until}.appendPlace(slices.Clone(prefix))
	}
	if s.filter.Since != nil {
		last := Entry{CreatedAt: *s.filter.Since, ID: id(bytes.Repeat([]byte{0xff}, idLen))}
		upper = append(last.appendPlace(slices.Clone(prefix)), 0)
	}
	return lower, upper
}

func (s *scanner) open(prefix []byte) (*pebble.Iterator, error) {
	lower, upper := s.bounds(prefix)
	return s.view.reads.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
}

// matchAt reads the entry that an iterator stands at; it is valid until the iterator moves.
func (s *scanner) matchAt(it *pebble.Iterator) (*match, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	s.at = match{Entry: placeOf(it.Key())}
	raw, err := s.at.readPosting(value)
	if len(raw) > 0 {
		s.at.raw = raw
	}
	return &s.at, err
}

// intersect walks all conditions of the plan at once, newest first, and stops as soon as enough was
// found. At most one event is loaded for each match.
func (s *scanner) intersect(fn func(*match) (more bool, err error)) (err error) {
	unions := make([]union, len(s.plan.conditions))
	defer func() {
		for _, u := range unions {
			err = errors.Join(err, u.close())
		}
	}()
	for i, ranges := range s.plan.conditions {
		if err := s.openUnion(&unions[i], ranges); err != nil {
			return err
		}
	}
	for found := 0; ; {
		met, err := s.meet(unions)
		if err != nil || !met {
			return err
		}
		m, err := s.matchAt(unions[0][0].it)
		if err != nil {
			return err
		}
		ok, err := s.accept(m)
		if err != nil {
			return err
		}
		if ok {
			if more, err := fn(m); err != nil || !more {
				return err
			}
			if found++; found == s.filter.Limit {
				return nil
			}
		}
		left := [placeLen]byte(unions[0].place())
		for bytes.Equal(unions[0].place(), left[:]) {
			if err := s.move(&unions[0], unions[0][0].it.Next()); err != nil {
				return err
			}
		}
	}
}

// meet moves the unions on to the next place where all of them stand. It is false at the end of one
// of them. None is walked step by step: each leaps to where another stands, so that this takes
// about as many leaps as the smallest of them has entries.
func (s *scanner) meet(unions []union) (bool, error) {
	for at := 0; at < len(unions); at++ {
		place := unions[0].place()
		if err := s.seek(&unions[at], place); err != nil {
			return false, err
		}
		found := unions[at].place()
		if place == nil || found == nil {
			return false, nil
		}
		if !bytes.Equal(found, place) {
			if err := s.seek(&unions[0], found); err != nil {
				return false, err
			}
			at = -1 // all over again
		}
	}
	return true, nil
}

// union walks several ranges at once, newest first, each place once: the first span is where it
// stands, and the others follow in order.
type union []span

// span is one range and where its iterator stands in it.
type span struct {
	prefix []byte
	it     *pebble.Iterator
}

// place is where the span stands: the last part of every index key.
func (s span) place() []byte { k := s.it.Key(); return k[len(k)-placeLen:] }

// place is where the union stands; nil at its end. It is valid until the union moves.
func (u union) place() []byte {
	if len(u) == 0 {
		return nil
	}
	return u[0].place()
}

func (u union) close() (err error) {
	for _, s := range u {
		err = errors.Join(err, s.it.Close())
	}
	return err
}

func (s *scanner) openUnion(u *union, ranges [][]byte) error {
	for _, prefix := range ranges {
		it, err := s.open(prefix)
		if err != nil {
			return err
		}
		*u = slices.Insert(*u, 0, span{prefix, it})
		if err := s.move(u, it.First()); err != nil {
			return err
		}
	}
	return nil
}

// seek moves a union on to the first place at or after the given one.
func (s *scanner) seek(u *union, place []byte) error {
	for len(*u) > 0 && bytes.Compare(u.place(), place) < 0 {
		first := (*u)[0]
		key := append(slices.Clip(first.prefix), place...)
		if err := s.move(u, first.it.SeekGE(key)); err != nil {
			return err
		}
	}
	return nil
}

// move puts the first span, whose iterator has moved, where it belongs now, or closes it at its
// end.
func (s *scanner) move(u *union, valid bool) error {
	spans := *u
	if !valid {
		*u = spans[1:]
		return errors.Join(spans[0].it.Close(), s.tick(1))
	}
	for i := 1; i < len(spans) && bytes.Compare(spans[i].place(), spans[i-1].place()) < 0; i++ {
		spans[i], spans[i-1] = spans[i-1], spans[i]
	}
	return s.tick(1)
}

// gather answers a filter whose matches are not found in order: it collects them, and then gives
// them. With a limit it keeps no more than twice that many.
func (s *scanner) gather(fn func(*match) (bool, error), collect func(keep func(*match) error) error) error {
	var best []match
	err := collect(func(m *match) error {
		if ok, err := s.accept(m); err != nil || !ok {
			return err
		}
		best = append(best, match{Entry: m.Entry})
		if limit := s.filter.Limit; limit > 0 && len(best) >= 2*limit {
			if best = sortMatches(best); len(best) >= limit {
				best = best[:limit]
				s.worst = &match{Entry: best[limit-1].Entry}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, m := range sortMatches(best) {
		if s.filter.Limit > 0 && i == s.filter.Limit {
			return nil
		}
		if more, err := fn(&m); err != nil || !more {
			return err
		}
	}
	return nil
}

// lookUp finds the events of a filter that names ids.
func (s *scanner) lookUp(keep func(*match) error) error {
	for _, key := range s.plan.ids {
		if err := s.tick(loadSteps); err != nil {
			return err
		}
		e, known, err := s.view.reads.lookUp(id(key[1:]))
		if err != nil {
			return err
		}
		if !known || s.filter.Since != nil && e.CreatedAt < *s.filter.Since || s.filter.Until != nil &&
			e.CreatedAt > *s.filter.Until {
			continue
		}
		if err := keep(&match{Entry: e}); err != nil {
			return err
		}
	}
	return nil
}

// walk goes through very many ranges with one iterator, and leaves a range where it gets worse than
// the limit's best.
func (s *scanner) walk(keep func(*match) error) (err error) {
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
		for valid := it.First(); valid; valid = it.Next() {
			if err := s.tick(1); err != nil {
				return err
			}
			m, err := s.matchAt(it)
			if err != nil {
				return err
			}
			if s.worst != nil && m.Compare(s.worst.Entry) > 0 {
				break
			}
			if err := keep(m); err != nil {
				return err
			}
		}
		if err := it.Error(); err != nil {
			return err
		}
	}
	return nil
}

// sortMatches sorts newest first, each event once.
func sortMatches(list []match) []match {
	slices.SortFunc(list, func(a, b match) int { return a.Compare(b.Entry) })
	return slices.CompactFunc(list, func(a, b match) bool { return a.ID == b.ID })
}
