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
	expiry nostr.Timestamp
	raw    []byte
	event  *nostr.Event
}

// maxMerged bounds the Pebble iterators that are open at once for one filter. A filter with more
// values is gathered range by range.
const maxMerged = 64

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

func (v *View) scanner(ctx context.Context, f nostr.Filter) *scanner {
	s := &scanner{view: v, ctx: ctx, filter: f, plan: planOf(f)}
	if s.plan.load {
		s.rest = newMatcher(f)
	}
	return s
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
	case s.view.snap == nil:
		err = ErrClosed
	case s.plan.empty:
	case s.plan.ids != nil:
		err = s.gather(fn, s.lookUp)
	case len(s.plan.conditions[0]) > maxMerged:
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
	if m.expiry != 0 && m.expiry < s.view.now {
		return false, nil
	}
	if _, hidden := s.view.hidden.find(m.ID); hidden {
		return false, nil
	}
	if s.plan.kinds != nil {
		if _, ok := slices.BinarySearch(s.plan.kinds, uint16(m.Kind)); !ok {
			return false, nil
		}
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
		s.events, err = s.view.snap.NewIter(&pebble.IterOptions{LowerBound: []byte{tableEvent}, UpperBound: []byte{tableEvent + 1}})
		if err != nil {
			return err
		}
	}
	s.key = appendPlace(append(s.key[:0], tableEvent), m.CreatedAt, m.ID)
	if !s.events.SeekGE(s.key) || !bytes.Equal(s.events.Key(), s.key) {
		return errors.Join(s.events.Error(), fmt.Errorf("load event %x: %w", m.ID, errLost))
	}
	value, err := s.events.ValueAndErr()
	if err != nil {
		return fmt.Errorf("load event %x: %w", m.ID, err)
	}
	if _, m.raw, err = parsePosting(value); err != nil {
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
		lower = appendPlace(slices.Clone(prefix), *s.filter.Until, id{})
	}
	if s.filter.Since != nil {
		last := id(bytes.Repeat([]byte{0xff}, idLen))
		upper = append(appendPlace(slices.Clone(prefix), *s.filter.Since, last), 0)
	}
	return lower, upper
}

func (s *scanner) open(prefix []byte) (*pebble.Iterator, error) {
	lower, upper := s.bounds(prefix)
	return s.view.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
}

// matchAt reads the entry that an iterator stands at; it is valid until the iterator moves.
func (s *scanner) matchAt(it *pebble.Iterator) (*match, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, err
	}
	p, raw, err := parsePosting(value)
	if err != nil {
		return nil, err
	}
	s.at = match{Entry: placeOf(it.Key()), expiry: p.expiry}
	if s.at.Kind = int(p.kind); len(raw) > 0 {
		s.at.raw = raw
	}
	return &s.at, nil
}

// intersect walks all conditions of the plan at once, newest first, and stops as soon as enough was
// found.
func (s *scanner) intersect(fn func(*match) (bool, error)) (err error) {
	var unions []*union
	defer func() {
		for _, u := range unions {
			err = errors.Join(err, u.close())
		}
	}()
	for _, ranges := range s.plan.conditions {
		u := &union{}
		unions = append(unions, u)
		for _, prefix := range ranges {
			it, err := s.open(prefix)
			if err != nil {
				return err
			}
			if err := u.add(prefix, it); err != nil {
				return err
			}
		}
		if err := s.tick(len(ranges)); err != nil {
			return err
		}
	}
	for found := 0; ; {
		met, err := s.meet(unions)
		if err != nil || !met {
			return err
		}
		m, err := s.matchAt(unions[0].spans[0].it)
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
		moved, err := unions[0].next()
		if err != nil {
			return err
		}
		if err := s.tick(moved); err != nil {
			return err
		}
	}
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

// gather answers a filter whose matches are not found in order: it collects them, and then gives
// them. With a limit it keeps no more than twice that many.
func (s *scanner) gather(fn func(*match) (bool, error), collect func(keep func(*match) error) error) error {
	var best []match
	err := collect(func(m *match) error {
		if ok, err := s.accept(m); err != nil || !ok {
			return err
		}
		best = append(best, match{Entry: m.Entry, expiry: m.expiry})
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
	for _, eid := range s.plan.ids {
		if err := s.tick(loadSteps); err != nil {
			return err
		}
		at, known, err := lookUp(s.view.reads, eid)
		if err != nil {
			return err
		}
		if !known || s.filter.Since != nil && at.created < *s.filter.Since || s.filter.Until != nil && at.created > *s.filter.Until {
			continue
		}
		if err := keep(&match{Entry: Entry{at.created, eid, int(at.kind)}, expiry: at.expiry}); err != nil {
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
