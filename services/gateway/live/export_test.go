package live

import "testing"

// DeliverNow delivers an event in the caller's goroutine.
func DeliverNow(h *Hub, e *Event) { h.deliver(e) }

// CheckEmpty checks that nothing of earlier subscriptions is left in the index.
func CheckEmpty(t *testing.T, h *Hub) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.index) != 0 {
		t.Errorf("%d buckets are left in the index", len(h.index))
	}
}
