package eventdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/reconcile"
)

const (
	// blockLen is how many events a block may have; one that has more is divided into halves. The
	// ends of a range are walked, half a block each on average, and what lies between is added up
	// from blocks.
	blockLen = 256
	// sparse is how many events two neighbours have together that become one block.
	sparse = blockLen / 4
)

// sums are the sums of ids that reconciliation asks for (NIP-77): of all events, and of those of
// each kind, in blocks that follow each other in time. They are kept in memory, 80 bytes a block,
// and are made from the index when that is opened.
//
// Readers look at them beside their view, which may be of an earlier moment. The package reconcile
// says why the result is right all the same.
type sums struct {
	mu    sync.RWMutex
	all   *blocks
	kinds map[uint16]*blocks
}

// blocks are in order. They are never empty: the first begins at the first place there is.
type blocks struct {
	list   []block
	newest reconcile.Item // no event is at a later place
}

// block is what the events from a place to that of the next block add up to. Events that have
// expired count until they are swept out.
type block struct {
	from reconcile.Item
	sum  reconcile.Sum
}

func newBlocks() *blocks { return &blocks{list: make([]block, 1)} }

func newSums() *sums { return &sums{all: newBlocks(), kinds: map[uint16]*blocks{}} }

// of returns the blocks of a kind, which are made if need be.
func (s *sums) of(kind uint16) *blocks {
	b := s.kinds[kind]
	if b == nil {
		b = newBlocks()
		s.kinds[kind] = b
	}
	return b
}

// readSums makes the sums of what the index holds.
func readSums(r pebble.Reader) (*sums, error) {
	s := newSums()
	var failed [2]error
	var reading sync.WaitGroup
	reading.Go(func() {
		failed[0] = readBlocks(r, tableTime, func([]byte) *blocks { return s.all })
	})
	reading.Go(func() {
		failed[1] = readBlocks(r, tableKind, func(key []byte) *blocks { return s.of(kindAt(key)) })
	})
	reading.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, fmt.Errorf("read sums of the index: %w", err)
		}
	}
	for kind, b := range s.kinds {
		if err := s.divideAll(r, b, appendKind(nil, kind)); err != nil {
			return nil, err
		}
	}
	return s, s.divideAll(r, s.all, []byte{tableTime})
}

func kindAt(key []byte) uint16 { return binary.BigEndian.Uint16(key[1:]) }

// readBlocks walks a table backwards, which is oldest first. of returns the blocks that a key
// belongs to. A new one begins with a second only, because within one the ids come backwards too.
func readBlocks(r pebble.Reader, table byte, of func(key []byte) *blocks) (err error) {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
	if err != nil {
		return err
	}
	var at *blocks
	prefix, second := []byte(nil), nostr.Timestamp(-1)
	for valid := it.Last(); valid; valid = it.Prev() {
		key := it.Key()
		if p := key[:len(key)-placeLen]; at == nil || string(p) != string(prefix) {
			at, prefix, second = of(key), append(prefix[:0], p...), -1
		}
		item := itemAt(key)
		if !reconcile.Everything.Holds(item) {
			continue
		}
		last := &at.list[len(at.list)-1]
		if item.CreatedAt != second && last.sum.Count >= blockLen*3/4 {
			at.list = append(at.list, block{from: reconcile.Item{CreatedAt: item.CreatedAt}})
			last = &at.list[len(at.list)-1]
		}
		last.sum.Add(&item.ID)
		second = item.CreatedAt
		at.rise(item)
	}
	return it.Close()
}

// divideAll divides what came too crowded out of readBlocks.
func (s *sums) divideAll(r pebble.Reader, b *blocks, prefix []byte) error {
	for i := 0; i < len(b.list); i++ {
		if err := s.divide(r, b, prefix, i); err != nil {
			return fmt.Errorf("read sums of the index: %w", err)
		}
	}
	return nil
}

// find returns the block that an item belongs to.
func (b *blocks) find(i reconcile.Item) int {
	return sort.Search(len(b.list), func(n int) bool { return b.list[n].from.Compare(i) > 0 }) - 1
}

// end returns where a block ends.
func (b *blocks) end(n int) reconcile.Item {
	if n+1 < len(b.list) {
		return b.list[n+1].from
	}
	return reconcile.End
}

// whole adds up the blocks that are wholly in a range, and returns what they leave of it at both
// ends; if there are none, all of it is in the first.
func (b *blocks) whole(r reconcile.Range) (s reconcile.Sum, before, after reconcile.Range) {
	from := sort.Search(len(b.list), func(n int) bool { return b.list[n].from.Compare(r.From) >= 0 })
	to := b.find(r.To)
	if r.To == reconcile.End {
		to = len(b.list)
	}
	if from >= to {
		return s, r, reconcile.Range{}
	}
	for _, block := range b.list[from:to] {
		s.Plus(block.sum)
	}
	return s, reconcile.Range{From: r.From, To: b.list[from].from}, reconcile.Range{From: b.end(to - 1), To: r.To}
}

// cut returns beginnings of blocks that divide a range into parts of about the same size.
func (b *blocks) cut(r reconcile.Range, parts int) (cuts []reconcile.Item) {
	from, to := b.find(r.From)+1, b.find(r.To)
	if to >= 0 && b.list[to].from.Compare(r.To) < 0 {
		to++
	}
	if from >= to {
		return nil
	}
	// In front of each of these blocks a cut may be made.
	inside := b.list[from:to]
	total := b.list[from-1].sum.Count
	for _, block := range inside {
		total += block.sum.Count
	}
	before := b.list[from-1].sum.Count
	for n := range inside {
		left := uint64(parts - len(cuts)) // parts that are still to be made
		if left == 1 {
			break
		}
		if before >= (total+left-1)/left || len(inside)-n < int(left) {
			cuts = append(cuts, inside[n].from)
			total, before = total-before, 0
		}
		before += inside[n].sum.Count
	}
	return cuts
}

// move is one event that came or went.
type move struct {
	kind uint16
	item reconcile.Item
}

// crowded are blocks that have become too large: those at a place of one order of events.
type crowded struct {
	of     *blocks
	prefix []byte
	at     reconcile.Item
}

// apply takes in what a change has done to the index, from which r reads what has to be divided. If
// that fails blocks stay large, which costs time and nothing else; what the index suffers from is
// found by those who need its answers. Only one goroutine may call it at a time.
func (s *sums) apply(r pebble.Reader, came, went []move) {
	var large []crowded
	s.mu.Lock()
	for _, m := range went {
		s.all.remove(m.item)
		of := s.of(m.kind)
		if of.remove(m.item); len(of.list) == 1 && of.list[0].sum.Count == 0 {
			delete(s.kinds, m.kind)
		}
	}
	for _, m := range came {
		if s.all.add(m.item) {
			large = append(large, crowded{s.all, []byte{tableTime}, m.item})
		}
		if of := s.of(m.kind); of.add(m.item) {
			large = append(large, crowded{of, appendKind(nil, m.kind), m.item})
		}
	}
	s.mu.Unlock()
	for _, c := range large {
		_ = s.divide(r, c.of, c.prefix, c.of.find(c.at))
	}
}

// add reports whether the block that has the item now has just become too large. Most events are
// newer than all others; for these a new block begins in time, so that none has to be divided.
func (b *blocks) add(i reconcile.Item) bool {
	last := &b.list[len(b.list)-1]
	if b.newest.Compare(i) < 0 && last.sum.Count >= blockLen*3/4 {
		b.list = append(b.list, block{from: reconcile.Between(b.newest, i)})
	}
	b.rise(i)
	block := &b.list[b.find(i)]
	block.sum.Add(&i.ID)
	return block.sum.Count == blockLen+1
}

func (b *blocks) rise(i reconcile.Item) {
	if b.newest.Compare(i) < 0 {
		b.newest = i
	}
}

func (b *blocks) remove(i reconcile.Item) {
	at := b.find(i)
	b.list[at].sum.Remove(&i.ID)
	b.join(at)
	b.join(at - 1)
}

// join makes one block of a block and the next if both are small.
func (b *blocks) join(at int) {
	if at >= 0 && at+1 < len(b.list) && b.list[at].sum.Count+b.list[at+1].sum.Count < sparse {
		b.list[at].sum.Plus(b.list[at+1].sum)
		b.list = slices.Delete(b.list, at+1, at+2)
	}
}

// divide makes blocks of half the greatest size of one that is larger.
func (s *sums) divide(r pebble.Reader, b *blocks, prefix []byte, at int) (err error) {
	if b.list[at].sum.Count <= blockLen {
		return nil
	}
	it, err := r.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	w := walk{it: it, prefix: prefix}
	made := []block{{from: b.list[at].from}}
	var last reconcile.Item
	for left := (reconcile.Range{From: b.list[at].from, To: b.end(at)}); !left.Empty(); {
		items, err := w.items(left, 4*blockLen)
		if err != nil {
			return err
		}
		for n := range items {
			if made[len(made)-1].sum.Count == blockLen/2 {
				made = append(made, block{from: reconcile.Between(last, items[n])})
			}
			made[len(made)-1].sum.Add(&items[n].ID)
			last = items[n]
		}
		if len(items) < 4*blockLen {
			break
		}
		left.From = next(last)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.list = slices.Replace(b.list, at, at+1, made...)
	return nil
}

// next is the place right after an item.
func next(i reconcile.Item) reconcile.Item {
	for n := len(i.ID) - 1; n >= 0; n-- {
		if i.ID[n]++; i.ID[n] != 0 {
			return i
		}
	}
	i.CreatedAt++
	return i
}
