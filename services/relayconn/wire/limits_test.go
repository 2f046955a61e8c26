package wire_test

import (
	"strings"
	"testing"

	"tendril.dev/services/relayconn/wire"
)

// TestWords has what relays say when we ask too much.
func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][3]bool{ // quiet, fewer, smaller
		"rate-limited: slow down":                         {true, false, false},
		"ERROR: too many requests":                        {true, false, false},
		"rate-limited: Too many concurrent subscriptions": {true, true, false},
		"ERROR: too many concurrent REQs":                 {false, true, false},
		"error: too many subscriptions":                   {false, true, false},
		"invalid: too many filters":                       {false, false, true},
		"error: REQ too large":                            {false, false, true},
		"auth-required: members only":                     {},
		"":                                                {},
	} {
		why := wire.ReadRefusal(text)
		if got := [3]bool{why.Quiet, why.Fewer, why.Smaller}; got != want || why.Proof != strings.HasPrefix(text, "auth") {
			t.Errorf("%q: quiet, fewer, smaller %v, want %v", text, why, want)
		}
	}
}

// TestRoom: what the relay says, what it refuses and what it has had open say together how much it
// takes; none of them alone can make it nothing, or everything.
func TestRoom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		said           int
		stood, refused []int
		live           int
		past           int // of 16 beside that many live ones
		more           bool
	}{
		"nothing is known":                  {live: 3, past: 16, more: true},
		"twenty":                            {said: 20, live: 3, past: 15, more: true},
		"twenty, many live":                 {said: 20, live: 12, past: 6, more: true},
		"twenty, no more live":              {said: 20, live: 13, past: 5},
		"twenty, more live than should be":  {said: 20, live: 25, past: 1},
		"it lies low":                       {said: 1, live: 1, past: 6, more: true},
		"it lies low, and took more":        {said: 1, stood: []int{12}, live: 5, past: 6, more: true},
		"it lies high, and refused":         {said: 5000, refused: []int{10}, live: 3, past: 6, more: true},
		"it refused twice":                  {refused: []int{10, 8}, live: 3, past: 4, more: true},
		"it refused, and has had more":      {stood: []int{12}, refused: []int{4}, live: 3, past: 8, more: true},
		"it refused what it had before":     {stood: []int{12, 3}, refused: []int{4}, live: 3, past: 8, more: true},
		"it refuses everything":             {refused: []int{0}, live: 0, past: 1, more: true},
		"layer 1 is live whatever there is": {said: 8, live: 0, past: 7, more: true},
		"it says eight":                     {said: 8, live: 5, past: 2},
	} {
		a := &wire.Limits{}
		a.Said(wire.Stated{Subscriptions: tc.said})
		for _, n := range tc.stood {
			a.Stood(n)
		}
		for _, n := range tc.refused {
			a.Refused(n)
		}
		if past, more := a.Past(tc.live, 16), a.Live(tc.live); past != tc.past || more != tc.more {
			t.Errorf("%s: %d for the past and more live %v, want %d and %v", name, past, more, tc.past, tc.more)
		}
	}
}

// TestSizes: what a relay says is heeded within bounds, so that neither 1 nor a billion does harm.
func TestSizes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		said                 wire.Stated
		page, filters, bytes int
		together             bool // filters of 30,000 bytes
	}{
		"nothing":     {page: 500, filters: 10, bytes: 65536, together: true},
		"strfry":      {said: wire.Stated{Events: 500, Bytes: 131072}, page: 500, filters: 20, bytes: 117965, together: true},
		"little":      {said: wire.Stated{Events: 100, Filters: 5, Bytes: 20000}, page: 100, filters: 5, bytes: 18000},
		"the least":   {said: wire.Stated{Events: 1, Filters: 1, Bytes: 1}, page: 50, filters: 3, bytes: 16384},
		"a great lie": {said: wire.Stated{Events: 1 << 30, Filters: 1 << 30, Bytes: 1 << 30}, page: 500, filters: 100, bytes: 262144, together: true},
	} {
		a := &wire.Limits{}
		a.Said(tc.said)
		if a.Page(500) != tc.page || a.Filters() != tc.filters || a.Bytes() != tc.bytes || a.Together(30_000) != tc.together {
			t.Errorf("%s: %d events, %d filters, %d bytes, together %v", name, a.Page(500), a.Filters(), a.Bytes(), a.Together(30_000))
		}
	}
}
