package reconcile

import (
	"context"
	"fmt"
	"slices"

	"tendril.dev/lib/nostr"
)

const (
	// parts is how many parts a range is split into whose fingerprints differ.
	parts = 16
	// listBelow is how many items a range has at least that is split; of fewer the ids are listed.
	listBelow = 2 * parts
	// rangeBytes is what the answer to one range takes at most, unless it is a list for a list: as
	// many bounds with fingerprints, or a bound and ids, and the fingerprint of all that follows.
	rangeBytes = (parts + 3) * (maxVarint + 1 + 32 + 1 + fingerprintLen)
)

// Bounds of messages that are written.
const (
	// LeastFrame is the smallest bound of a message, in bytes.
	LeastFrame = 4096
	// DefaultFrame fits, as hex digits in a nostr message, into 128 KiB, the largest message that
	// relays take by default.
	DefaultFrame = 60_000
)

// Limits bound one message. What would go beyond them is left to the next one, by the fingerprint
// of all that was not looked at.
type Limits struct {
	Frame  int // bytes that are written; at least LeastFrame
	Ranges int // of the other side that are looked at, those that it skips not counted; at least 1
	// Marks is how many fingerprints are written, at least 16. The other side may answer each with
	// sixteen, or with 31 ids, in one message.
	Marks int
}

// mostRanges is how many ranges of one message are looked at by default.
const mostRanges = 1024

// DefaultLimits is for who has no limit of its own for what the other side says.
var DefaultLimits = Limits{Frame: DefaultFrame, Ranges: mostRanges, Marks: DefaultFrame}

// LimitsFor is for who takes messages of so many bytes, as hex digits.
func LimitsFor(messageBytes int64) Limits {
	const answer = 2 * (listBelow*32 + 64) // to one fingerprint, at most
	l := DefaultLimits
	l.Marks = int(min(max(messageBytes/answer-1, parts), int64(l.Marks)))
	return l
}

// Respond answers a message of the side that asks, which is a stranger's. An error is
// [ErrMessage], or one of the set.
func Respond(ctx context.Context, set Set, message []byte, limits Limits) ([]byte, error) {
	if len(message) == 0 {
		return nil, broken("it is empty")
	}
	if v := message[0]; v != version {
		if v>>4 != version>>4 {
			return nil, broken("it begins with the byte %#x", v)
		}
		return []byte{version}, nil // the asking side may speak this one too
	}
	d := dialogue{set: set, limits: limits, out: newWriter()}
	return d.reconcile(ctx, message[1:])
}

// Start makes the first message of the side that asks.
func Start(ctx context.Context, set Set, limits Limits) ([]byte, error) {
	d := dialogue{set: set, limits: limits, out: newWriter(), asks: true}
	err := d.split(ctx, Everything)
	return d.out.out, err
}

// Continue reads an answer, which is a stranger's, tells by theirs what the other side has in the
// ranges that it completes, and makes the next message; nil: all is known. It may tell ids
// that the set has, and the same id again in another message. opening says that it is the answer to
// the message of [Start], in which all was in question. An error is [ErrMessage], one of the set, or
// one of theirs.
//
// The caller bounds how often: a relay can keep a session going for ever.
func Continue(
	ctx context.Context, set Set, message []byte, opening bool, limits Limits, theirs func(id [32]byte) error,
) (next []byte, shown Shown, err error) {
	if len(message) == 0 || message[0] != version {
		return nil, Shown{}, broken("it is not of version 1")
	}
	d := dialogue{set: set, limits: limits, out: newWriter(), asks: true, opening: opening, theirs: theirs}
	next, err = d.reconcile(ctx, message[1:])
	if err != nil || len(next) == 1 {
		return nil, d.shown, err
	}
	return next, d.shown, nil
}

// Shown is what an answer shows of the other side.
type Shown struct {
	Listed uint64 // items of the set in the ranges that the other side has listed
	// Oldest is when the oldest item of the set was made that the other side has by a list, by a
	// fingerprint of its own, or by what it skips of all; 0: it has shown none. What it skips later may
	// be what it was not asked about, so it may have older ones.
	Oldest nostr.Timestamp
}

func (s *Shown) has(i Item) {
	if s.Oldest == 0 || i.CreatedAt < s.Oldest {
		s.Oldest = i.CreatedAt
	}
}

// dialogue answers one message.
type dialogue struct {
	set    Set
	limits Limits
	out    *writer
	marks  int  // written
	asks   bool // this is the side that asks
	// opening: all was in question, so what the other side skips is the same there.
	opening bool
	theirs  func(id [32]byte) error // is told what the other side has; of the side that asks
	shown   Shown
}

// reconcile goes through the ranges of a message.
func (d *dialogue) reconcile(ctx context.Context, message []byte) ([]byte, error) {
	in := reader{rest: message}
	looked := 0
	for r := (Range{}); len(in.rest) > 0; r.From = r.To {
		var err error
		if r.To, err = in.bound(); err != nil {
			return nil, err
		}
		mode, err := in.varint()
		if err != nil {
			return nil, err
		}
		if mode == modeSkip {
			d.out.skip(r.To)
			if d.opening {
				if err := d.same(ctx, r); err != nil {
					return nil, err
				}
			}
			continue
		}
		if looked++; looked > d.limits.Ranges || d.full() {
			return d.rest(ctx, r.From)
		}
		stop := false
		switch mode {
		case modeFingerprint:
			err = d.compare(ctx, &in, r)
		case modeIDs:
			stop, err = d.list(ctx, &in, r)
		default:
			err = broken("a range has mode %d", mode)
		}
		if err != nil || stop {
			return d.out.out, err
		}
	}
	if d.opening { // what the message says nothing of is skipped
		return d.out.out, d.same(ctx, Range{in.at, End})
	}
	return d.out.out, nil
}

// full reports whether another range may not fit any more.
func (d *dialogue) full() bool {
	return len(d.out.out)+rangeBytes > d.limits.Frame || d.marks+parts > d.limits.Marks
}

// rest ends an answer before the end of the message: all that follows has to be said again.
func (d *dialogue) rest(ctx context.Context, from Item) ([]byte, error) {
	left, err := d.set.Sum(ctx, Range{from, End})
	if err != nil {
		return nil, fmt.Errorf("look at the set: %w", err)
	}
	d.out.fingerprint(End, left)
	return d.out.out, nil
}

// compare reads a fingerprint and splits the range if it is not the own one.
func (d *dialogue) compare(ctx context.Context, in *reader, r Range) error {
	mark, err := in.bytes(fingerprintLen)
	if err != nil {
		return err
	}
	own, err := d.set.Sum(ctx, r)
	if err != nil {
		return fmt.Errorf("look at the set: %w", err)
	}
	if own.Fingerprint() == [fingerprintLen]byte(mark) {
		d.out.skip(r.To)
		return d.same(ctx, r)
	}
	return d.split(ctx, r)
}

// same notes that the other side has the same in a range.
func (d *dialogue) same(ctx context.Context, r Range) error {
	if !d.asks {
		return nil
	}
	items, err := d.set.Items(ctx, r)
	if err != nil {
		return fmt.Errorf("look at the set: %w", err)
	}
	if len(items) > 0 {
		d.shown.has(items[0])
	}
	return nil
}

// list reads a list of ids. The side that asks is done with the range then; the one that answers
// lists its own, as many as there is room for. stop: there was room for nothing after it.
func (d *dialogue) list(ctx context.Context, in *reader, r Range) (stop bool, err error) {
	count, err := in.count()
	if err != nil {
		return false, err
	}
	listed := map[[32]byte]bool{}
	for range count {
		id, err := in.bytes(uint64(len(Item{}.ID)))
		if err != nil {
			return false, err
		}
		if !d.asks {
			continue
		}
		listed[[32]byte(id)] = true
		if err := d.theirs([32]byte(id)); err != nil {
			return false, err
		}
	}
	if d.asks {
		d.out.skip(r.To)
		own, err := d.set.Items(ctx, r)
		if err != nil {
			return false, fmt.Errorf("look at the set: %w", err)
		}
		d.shown.Listed += uint64(len(own))
		if n := slices.IndexFunc(own, func(i Item) bool { return listed[i.ID] }); n >= 0 {
			d.shown.has(own[n])
		}
		return false, nil
	}
	// The fingerprint of all that follows has its room in rangeBytes.
	room := (d.limits.Frame - rangeBytes/2 - len(d.out.out)) / len(Item{}.ID)
	own, err := d.set.Items(ctx, r)
	if err != nil {
		return false, fmt.Errorf("look at the set: %w", err)
	}
	if len(own) <= room {
		d.out.ids(r.To, own)
		return false, nil
	}
	to := Between(own[room-1], own[room])
	d.out.ids(to, own[:room])
	_, err = d.rest(ctx, to)
	return true, err
}

// split writes a range as several smaller ones of the same size, or lists its ids if they are few.
// The side that asks lists none: the answer to a list is a list of all that the other side has in
// the range, which may be any number. To a fingerprint it lists few, or splits.
func (d *dialogue) split(ctx context.Context, r Range) error {
	items, err := d.set.Items(ctx, r)
	if err != nil {
		return fmt.Errorf("look at the set: %w", err)
	}
	if len(items) < listBelow {
		if !d.asks {
			d.out.ids(r.To, items)
			return nil
		}
		var s Sum
		for i := range items {
			s.Add(&items[i].ID)
		}
		d.out.fingerprint(r.To, s)
		d.marks++
		return nil
	}
	for n, from := 1, 0; n <= parts; n++ {
		at, to := n*len(items)/parts, r.To
		if n < parts {
			to = Between(items[at-1], items[at])
		}
		var s Sum
		for i := range items[from:at] {
			s.Add(&items[from:at][i].ID)
		}
		d.out.fingerprint(to, s)
		d.marks++
		from = at
	}
	return nil
}

// Split cuts an answer, which is a stranger's, into several of at most so many bytes, at least
// LeastFrame. Together they say the same to [Continue]: a long list of ids becomes several of the
// same range, each of which tells some of them.
func Split(message []byte, most int) ([][]byte, error) {
	if len(message) <= most || message[0] != version {
		return [][]byte{message}, nil
	}
	const idBytes = len(Item{}.ID)
	in, out := reader{rest: message[1:]}, newWriter()
	var parts [][]byte
	room := func() int { return (most - len(out.out) - rangeBytes/2) / idBytes }
	cut := func(from Item) { // the next one begins where this one ends
		parts, out = append(parts, out.out), newWriter()
		if from != (Item{}) {
			out.skip(from)
		}
	}
	for from := (Item{}); len(in.rest) > 0; from = in.at {
		to, err := in.bound()
		if err != nil {
			return nil, err
		}
		if in.at = to; room() < 1 {
			cut(from)
		}
		mode, err := in.varint()
		if err != nil {
			return nil, err
		}
		switch mode {
		case modeSkip:
			out.skip(to)
		case modeFingerprint:
			mark, err := in.bytes(fingerprintLen)
			if err != nil {
				return nil, err
			}
			out.bound(to, modeFingerprint)
			out.out = append(out.out, mark...)
		case modeIDs:
			count, err := in.count()
			if err != nil {
				return nil, err
			}
			for first := true; first || count > 0; first = false {
				if !first {
					cut(from)
				}
				n := min(count, room())
				ids, err := in.bytes(uint64(n * idBytes))
				if err != nil {
					return nil, err
				}
				out.bound(to, modeIDs)
				out.out = append(appendVarint(out.out, uint64(n)), ids...)
				count -= n
			}
		default:
			return nil, broken("a range has mode %d", mode)
		}
	}
	return append(parts, out.out), nil
}
