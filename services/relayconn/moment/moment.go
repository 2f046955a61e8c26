// Package moment compares moments of which some may not be set: the zero time is no moment.
package moment

import "time"

// Earlier returns the earlier of two moments, the other one if one is none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two moments.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Shift moves a moment that is set.
func Shift(t time.Time, by time.Duration) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(by)
}

// NextAfter returns the earliest of the moments that come after now; zero: none does.
func NextAfter(now time.Time, moments ...time.Time) (next time.Time) {
	for _, m := range moments {
		if m.After(now) {
			next = Earlier(next, m)
		}
	}
	return next
}
