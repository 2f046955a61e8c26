package history

import "time"

// Earlier returns the earlier of two moments. The zero time is no moment.
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

// NextAfter returns the earliest of the moments that come after now; zero: none does.
func NextAfter(now time.Time, moments ...time.Time) (next time.Time) {
	for _, m := range moments {
		if m.After(now) {
			next = Earlier(next, m)
		}
	}
	return next
}
