//go:build libsecp256k1 && cgo && linux

package nostr

import "testing"

// Without libsecp256k1's functions all would work, and cost more.
func TestLinked(t *testing.T) {
	t.Parallel()
	if !linked {
		t.Error("go-nostr does not bring libsecp256k1's functions along")
	}
}
