// Package leads knows which connection of a worker asks its relay for the past of which references
// and root events. Relays have much in common: what one of them is bringing need not come from the
// others as well. Those wait until it has come, and then only what they have beyond it is found out
// (docs/architecture.md, How things flow).
//
// A relay is a stranger: it may take its time, or bring nothing. So a lead is lost when no answer
// ends for a while, and at the latest after a minute, and nothing depends on what the relay
// brought: the others are asked for the same items in any case.
package leads

import (
	"hash/maphash"
	"sync"
	"time"

	"tendril.dev/services/relayconn/recent"
)

const (
	// patience is how long a lead lasts after its begin, and after each answer that has ended.
	patience = 15 * time.Second
	// longest is how long it lasts at most.
	longest = time.Minute
	// verdicts is how long what came last may take to be decided.
	verdicts = time.Second
	// mostAsked is how many items are remembered that were asked for, half of them at least. One
	// that is forgotten is asked for once more.
	mostAsked = 1 << 17
	// tallied is of how many events it is known at least whether they were known before, for that
	// to say something of the next ones, and half of how many of the last ones at most.
	tallied = 1000
	// newPart is the part of them that are new, as a divisor, for which it is worth to go on.
	newPart = 8
	// sampleEvery is of how many groups one is asked for all the same, to see whether that has
	// changed.
	sampleEvery = 8
	// sweepEvery is how often leads are looked for that were lost.
	sweepEvery = 10 * time.Second
)

// Board is where the connections of a worker look. It is safe for concurrent use.
type Board struct {
	mu    sync.Mutex
	seed  maphash.Seed
	held  map[uint64]*Lead // by item
	leads map[*Lead]struct{}
	asked recent.Set[uint64] // items for which a lead has come to its end
	swept time.Time
	going int       // leads that have not ended, also those that were lost since the last sweep
	busy  time.Time // when there was one last
	came  int       // events that root events have brought of late, since it was quiet last
	fresh int       // and of these, those that were not known
	probe *Probe    // that is under way, or was the last; nil: there was none since it was quiet last
}

// New returns a board without leads.
func New() *Board {
	return &Board{
		seed: maphash.MakeSeed(), held: map[uint64]*Lead{}, leads: map[*Lead]struct{}{}, asked: recent.New[uint64](mostAsked),
	}
}

// Lead is some items that one connection asks for. It may do so in several parts.
type Lead struct {
	board *Board
	items []uint64
	parts int
	began time.Time
	heard time.Time // when it began, or an answer ended last
	ended time.Time // when what has come is decided; zero: it has not ended
	whole bool      // no part has failed
	some  bool      // a part has brought something
}

// Take returns the lead for those items that no other connection is asking for or has asked for
// lately; nil: for none. rest is the others. Both may be a part of items.
func (b *Board) Take(items []string, now time.Time) (mine, rest []string, lead *Lead) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	var keys []uint64
	for n, item := range items {
		key := maphash.String(b.seed, item)
		free := !b.asked.Has(key)
		if l := b.held[key]; l != nil && !l.lost(now) {
			free = false
		}
		switch {
		case free && len(mine) == n:
			mine, keys = items[:n+1:n+1], append(keys, key)
		case free:
			mine, keys = append(mine, item), append(keys, key)
		case len(rest) == n:
			rest = items[: n+1 : n+1]
		default:
			rest = append(rest, item)
		}
	}
	if len(mine) == 0 {
		return nil, rest, nil
	}
	lead = &Lead{board: b, items: keys, parts: 1, began: now, heard: now, whole: true}
	for _, key := range keys {
		b.held[key] = lead
	}
	b.leads[lead] = struct{}{}
	if b.going == 0 {
		b.probe, b.came, b.fresh = nil, 0, 0
	}
	b.going++
	return mine, rest, lead
}

// Blocked returns a lead of the first of some items that is being asked for, and which it is; nil:
// none is.
func (b *Board) Blocked(items []string, now time.Time) (at int, by *Lead) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, item := range items {
		if l := b.held[maphash.String(b.seed, item)]; l != nil && !l.over(now) {
			return n, l
		}
	}
	return len(items), nil
}

// QuietSince is since when no connection has been asking for anything; zero: none ever has.
func (b *Board) QuietSince(now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	if b.going > 0 {
		b.busy = now
	}
	return b.busy
}

// Brought notes how many events have come because root events were asked for, and how many of these
// were not known.
func (b *Board) Brought(came, fresh int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came, b.fresh = b.came+came, b.fresh+fresh
	for b.came > 2*tallied {
		b.came, b.fresh = b.came/2, b.fresh/2
	}
}

// Idle reports whether a group of root events need not be asked for now, because nearly all that
// others have brought was known: what names a repository comes with that as well. What else there
// is of them is found out when everything has come. When no lead has gone on for a while, what was
// counted says nothing any more.
func (b *Board) Idle(roots []string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	if b.going == 0 && now.Sub(b.busy) >= patience || b.came < tallied || b.fresh > b.came/newPart {
		return false
	}
	return maphash.String(b.seed, roots[0])%sampleEvery != 0 // whichever connection it is
}

// Probe is a connection's attempt to find out in one go what its relay has beyond what is known,
// while others are bringing much.
type Probe struct {
	board *Board
	began time.Time
	vain  bool
}

// Probe lets a connection try that; nil: another one is doing so, or has done so in vain since it
// was quiet last. It would most likely be in vain for this one too, and costs as much each time as
// there are events missing.
func (b *Board) Probe(now time.Time) *Probe {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.probe; p != nil && (p.vain || now.Sub(p.began) < patience) {
		return nil
	}
	b.probe = &Probe{board: b, began: now}
	return b.probe
}

// End notes how it has ended: in vain if too much was missing. Only the first end counts; a nil
// Probe has none.
func (p *Probe) End(vain bool) {
	if p == nil {
		return
	}
	p.board.mu.Lock()
	defer p.board.mu.Unlock()
	if p.board.probe != p || p.vain {
		return
	}
	if p.vain = vain; !vain {
		p.board.probe = nil
	}
}

// sweep forgets leads that are over, once in a while. The lock is held.
func (b *Board) sweep(now time.Time) {
	if now.Sub(b.swept) < sweepEvery {
		return
	}
	b.swept = now
	for l := range b.leads {
		if l.over(now) {
			b.forget(l)
		}
	}
}

// forget lets go of a lead. The lock is held.
func (b *Board) forget(l *Lead) {
	if _, known := b.leads[l]; !known {
		return
	}
	delete(b.leads, l)
	if l.ended.IsZero() {
		b.going--
	}
	for _, key := range l.items {
		if b.held[key] == l {
			delete(b.held, key)
		}
	}
	l.items = nil
}

// lost reports whether the lead is nobody's any more, though it has not ended.
func (l *Lead) lost(now time.Time) bool {
	return now.Sub(l.heard) >= patience || now.Sub(l.began) >= longest
}

// over reports whether nobody needs to wait for the lead any more. The lock is held.
func (l *Lead) over(now time.Time) bool {
	if l.ended.IsZero() {
		return l.lost(now)
	}
	return !now.Before(l.ended)
}

// Over reports whether nobody needs to wait for the lead any more: what it asked for has come and
// was decided, or it was lost.
func (l *Lead) Over(now time.Time) bool {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	return l.over(now)
}

// Heard notes that an answer has ended, and that there is more to ask for.
func (l *Lead) Heard(now time.Time) {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	l.heard = now
}

// Unread keeps a time in which nothing was read from counting as the relay's.
func (l *Lead) Unread(d time.Duration) {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	l.began, l.heard = l.began.Add(d), l.heard.Add(d)
}

// Part notes that so many more parts are asked for.
func (l *Lead) Part(more int) {
	l.board.mu.Lock()
	defer l.board.mu.Unlock()
	l.parts += more
}

// End notes that a part has ended: whether it has brought all that the relay has, and whether that
// was anything. Where one has not brought all, another connection may ask for it.
func (l *Lead) End(whole, some bool, now time.Time) {
	b := l.board
	b.mu.Lock()
	defer b.mu.Unlock()
	l.parts--
	l.whole, l.some = l.whole && whole, l.some || some
	if l.parts > 0 || !l.ended.IsZero() {
		return
	}
	b.busy = now
	if !l.whole {
		b.forget(l)
		l.ended = now
		return
	}
	if _, known := b.leads[l]; known {
		b.going--
	}
	if l.ended = now; l.some {
		l.ended = now.Add(verdicts)
	}
	for _, key := range l.items {
		b.asked.Add(key)
	}
}
