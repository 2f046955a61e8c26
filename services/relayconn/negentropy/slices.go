package negentropy

import (
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

const (
	// mostSplits is how often a span of time is halved: from all of nostr's time to an hour.
	mostSplits = 16
	// beginning is about when nostr began, in seconds. What is said to be older is cut off as one
	// piece.
	beginning nostr.Timestamp = 1604188800
)

// Span is a time, both ends included; nil: no bound.
type Span struct{ Since, Until *nostr.Timestamp }

// of narrows a filter to the span.
func (s Span) of(f nostr.Filter) nostr.Filter {
	f.Since, f.Until = s.Since, s.Until
	return f
}

// slice is a span that was made by halving one so many times.
type slice struct {
	Span
	splits int
}

// plan is what is left of a span, in pieces that follow each other, the oldest first. The last one
// is next.
type plan []slice

func (p plan) next() Span { return p[len(p)-1].Span }

// done takes off what is next.
func (p plan) done() plan { return p[:len(p)-1] }

// rest is all that is left, as one span.
func (p plan) rest() Span { return Span{Since: p[0].Since, Until: p.next().Until} }

// split halves what is next, because it has too many events for one side. ok is false if it is
// small enough for that not to help. Both halves have the second at which it is cut, because there
// are relays that take since for the moment after which, not from which, events are wanted.
func (p plan) split(now nostr.Timestamp) (halves plan, ok bool) {
	whole := p[len(p)-1]
	from, to := nostr.Timestamp(0), now
	if whole.Since != nil {
		from = *whole.Since
	}
	if whole.Until != nil {
		to = *whole.Until
	}
	if from < beginning && to > beginning {
		from = beginning
	}
	if whole.splits >= mostSplits || to-from < 2 {
		return p, false
	}
	cut := from + (to-from)/2
	return append(slices.Clone(p.done()),
		slice{Span{whole.Since, &cut}, whole.splits + 1},
		slice{Span{&cut, whole.Until}, whole.splits + 1}), true
}
