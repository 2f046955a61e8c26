package leads

import "time"

// Held is how many items are kept because a connection asks for them.
func (b *Board) Held(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweep(now)
	return len(b.held)
}
