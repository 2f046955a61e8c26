package eventdb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/reconcile"
)

// ErrTooMany: more events match a filter than may be kept in memory.
var ErrTooMany = errors.New("too many events match the filter")

// Ordered is what matches a filter, for reconciliation. Ranges of it are read from the index, with
// the help of sums that are kept there, so that it needs no memory of its own however many events
// match. It belongs to a view, has its bounds, and must be closed before it.
//
// It is of the moment of the view where it walks, and of now where it adds up what is kept; see the
// package reconcile. It is not safe for concurrent use.
type Ordered struct {
	orders reconcile.Union
	closes []func() error
}

// IsOrdered reports whether a filter is of nothing but kinds, at most 64, and times: then
// [View.Ordered] opens it. [View.Packed] is for all others.
func IsOrdered(f nostr.Filter) bool {
	return f.IDs == nil && f.Authors == nil && len(f.Tags) == 0 && len(f.Kinds) <= maxMerged &&
		f.Limit == 0 && !f.LimitZero && f.Search == ""
}

// Ordered opens what matches a filter for which [IsOrdered].
func (v *View) Ordered(f nostr.Filter) (*Ordered, error) {
	if !IsOrdered(f) {
		return nil, errors.New("query: no sums are kept for such a filter")
	}
	if v.err != nil {
		return nil, fmt.Errorf("query: %w", v.err)
	}
	o, count := &Ordered{}, &scanner{view: v}
	p := planOf(f)
	if p.empty {
		return o, nil
	}
	for _, prefix := range p.conditions[0] {
		it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: successor(prefix)})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("query: %w", err), o.Close())
		}
		w := walk{it: it, prefix: prefix, tick: count.tick, pass: v.passes}
		o.orders = append(o.orders, &order{scanner: count, walk: w, sums: v.db.sums.Load(), since: f.Since, until: f.Until})
		o.closes = append(o.closes, it.Close)
	}
	return o, nil
}

// passes reports whether an entry is of an event that has expired.
func (v *View) passes(value []byte) (bool, error) {
	p, err := parsePosting(value)
	return v.expired(p), err
}

// Close gives back what the set reads with.
func (o *Ordered) Close() (err error) {
	for _, end := range o.closes {
		err = errors.Join(err, end())
	}
	o.closes = nil
	return err
}

// Sum adds up a range.
func (o *Ordered) Sum(ctx context.Context, r reconcile.Range) (reconcile.Sum, error) {
	return o.orders.Sum(ctx, r)
}

// Items returns the first items of a range.
func (o *Ordered) Items(ctx context.Context, r reconcile.Range, most int) ([]reconcile.Item, error) {
	return o.orders.Items(ctx, r, most)
}

// Cut divides a range where blocks of the index begin.
func (o *Ordered) Cut(ctx context.Context, r reconcile.Range, parts int) ([]reconcile.Item, error) {
	return o.orders.Cut(ctx, r, parts)
}

// order is all events, or those of a kind, of a time.
type order struct {
	scanner      *scanner // counts the steps of all orders
	walk         walk
	sums         *sums
	since, until *nostr.Timestamp
}

// blocks returns the kept sums; the caller holds their lock.
func (o *order) blocks() *blocks {
	if o.walk.prefix[0] == tableTime {
		return o.sums.all
	}
	if b := o.sums.kinds[kindAt(o.walk.prefix)]; b != nil {
		return b
	}
	return newBlocks()
}

func (o *order) Sum(ctx context.Context, r reconcile.Range) (s reconcile.Sum, err error) {
	o.scanner.ctx = ctx
	if r = r.Within(o.since, o.until); r.Empty() {
		return s, nil
	}
	o.sums.mu.RLock()
	s, before, after := o.blocks().whole(r)
	o.sums.mu.RUnlock()
	for _, end := range []reconcile.Range{before, after} {
		part, err := o.walk.sum(end)
		if err != nil {
			return s, fmt.Errorf("query: %w", err)
		}
		s.Plus(part)
	}
	return s, nil
}

func (o *order) Items(ctx context.Context, r reconcile.Range, most int) ([]reconcile.Item, error) {
	o.scanner.ctx = ctx
	items, err := o.walk.items(r.Within(o.since, o.until), most)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	return items, nil
}

func (o *order) Cut(_ context.Context, r reconcile.Range, parts int) ([]reconcile.Item, error) {
	if r = r.Within(o.since, o.until); r.Empty() {
		return nil, nil
	}
	o.sums.mu.RLock()
	defer o.sums.mu.RUnlock()
	return o.blocks().cut(r, parts), nil
}

// Packed gathers what matches a filter, for reconciliation. [ErrTooMany]: more than most do, which
// is found out before twice as many are in memory.
func (v *View) Packed(ctx context.Context, f nostr.Filter, most int) (reconcile.Packed, error) {
	var items []reconcile.Item
	s := v.scanner(ctx, f)
	err := s.unordered(func(m match) (bool, error) {
		items = append(items, reconcile.Item{CreatedAt: m.entry.CreatedAt, ID: m.entry.ID})
		if len(items) < 2*most+1 {
			return true, nil
		}
		// The same event may have come several times.
		if items = reconcile.Pack(items); len(items) > most {
			return false, ErrTooMany
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if items = reconcile.Pack(items); len(items) > most {
		return nil, ErrTooMany
	}
	return slices.Clip(items), nil
}

// unordered is scan for those who need no order and can bear an event that comes several times:
// nothing is kept in memory.
func (s *scanner) unordered(fn func(match) (more bool, err error)) error {
	if s.plan.empty || s.plan.ids != nil || s.filter.Limit > 0 || len(s.plan.conditions[0]) <= maxMerged {
		return s.scan(fn)
	}
	if s.view.err != nil {
		return fmt.Errorf("query: %w", s.view.err)
	}
	if err := s.eachRange(func(it *pebble.Iterator) error { return s.giveRange(it, fn) }); err != nil {
		return fmt.Errorf("query: %w", err)
	}
	return nil
}

func (s *scanner) giveRange(it *pebble.Iterator, fn func(match) (more bool, err error)) error {
	for valid := it.First(); valid; valid = it.Next() {
		if err := s.tick(1); err != nil {
			return err
		}
		m, err := matchAt(it)
		if err != nil {
			return err
		}
		ok, err := s.accept(&m)
		if err != nil {
			return err
		}
		if ok {
			if _, err := fn(m); err != nil {
				return err
			}
		}
	}
	return it.Error()
}
