package nostr

// Replaces reports whether a takes the place of b where both are events of one address: the newer
// one does, at the same second the one with the lower id (NIP-01). An event does not replace
// itself.
func Replaces(a, b *Event) bool {
	switch {
	case a == nil || b == nil:
		return b == nil && a != nil
	case a.CreatedAt != b.CreatedAt:
		return a.CreatedAt > b.CreatedAt
	}
	return a.ID < b.ID
}
