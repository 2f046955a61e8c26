package hunt

import "time"

// maxSpans bounds the times that are remembered for an identifier.
const maxSpans = 64

// Waited is the times in which an identifier waited for its turn at a host, or a fetch for it ran.
// They do not count where something is given a time to come.
type Waited struct {
	spans []span
	since time.Time // such a time goes on since then; zero: none does
}

type span struct{ from, to time.Time }

// WaitedBetween is one such time.
func WaitedBetween(from, to time.Time) Waited { return Waited{spans: []span{{from, to}}} }

// Now reports whether such a time goes on.
func (w Waited) Now() bool { return !w.since.IsZero() }

// Within is how much of a time was such time.
func (w Waited) Within(from, to time.Time) (sum time.Duration) {
	spans := w.spans
	if w.Now() {
		spans = append(spans[:len(spans):len(spans)], span{w.since, to})
	}
	for _, s := range spans {
		if s.from.Before(from) {
			s.from = from
		}
		if s.to.After(to) {
			s.to = to
		}
		sum += max(0, s.to.Sub(s.from))
	}
	return sum
}

// begin and end note where such a time begins and ends.
func (w *Waited) begin(now time.Time) { w.since = now }

func (w *Waited) end(now time.Time) {
	if len(w.spans) == maxSpans {
		w.spans = append([]span{}, w.spans[1:]...)
	}
	w.spans = append(w.spans, span{w.since, now})
	w.since = time.Time{}
}
