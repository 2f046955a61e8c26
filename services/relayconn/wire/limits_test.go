package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"tendril.dev/services/relayconn/wire"
)

// TestWords has what relays say when we ask too much.
func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{ // proof, quiet, fewer, smaller, shorter, never
		"rate-limited: slow down":                             "{false true false false false false}",
		"ERROR: too many requests":                            "{false true false false false false}",
		"rate-limited: Too many concurrent subscriptions":     "{false true true false false false}",
		"ERROR: too many concurrent REQs":                     "{false false true false false false}",
		"error: too many subscriptions":                       "{false false true false false false}",
		"invalid: too many filters":                           "{false false false true false false}",
		"Maximum number of open filters reached":              "{false false true false false false}",
		"error: REQ too large":                                "{false false false true false false}",
		"auth-required: members only":                         "{true false false false false false}",
		"":                                                    "{false false false false false false}",
		"restricted: members only":                            "{false false false false false true}",
		"blocked: you are banned":                             "{false false false false false true}",
		"invalid: kind 10317 is not known here":               "{false false false false false true}",
		"error: filter item too large":                        "{false false false true false false}",
		"restricted: time range exceeds 30 days":              "{false false false true true false}",
		"invalid: a query may span 7 days":                    "{false false false true true false}",
		"error: the time between since and until is too long": "{false false false true true false}",
		"rate-limited: too many requests in this window":      "{false true false true true false}",
		"blocked: you are banned for 30 days":                 "{false false false false false true}",
	} {
		if got := fmt.Sprint(wire.ReadRefusal(text)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestRoom: what the relay says, what it refuses and what it has had open say together how much it
// takes; none of them alone can make it nothing, or everything.
func TestRoom(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]string{ // said; stood and refused in turn; live: past of 16 beside so many live ones, whether one more may be live
		"nothing is known":                 "0 0 0 0 3: 16 true",
		"twenty":                           "20 0 0 0 3: 15 true",
		"twenty, many live":                "20 0 0 0 12: 6 true",
		"twenty, no more live":             "20 0 0 0 13: 5 false",
		"twenty, more live than should be": "20 0 0 0 25: 1 false",
		"it lies low":                      "1 0 0 0 1: 6 true",
		"it lies low, and took more":       "1 12 0 0 5: 6 true",
		"it lies high, and refused":        "5000 0 10 0 3: 6 true",
		"it refused twice":                 "0 0 10 8 3: 4 true",
		"it refused, and has had more":     "0 12 4 0 3: 8 true",
		"it refused what it had before":    "0 12 4 4 3: 8 true",
		"it refuses everything":            "0 0 -1 0 0: 1 true",
		"layer 1 is always live":           "8 0 0 0 0: 7 true",
		"it says eight":                    "8 0 0 0 5: 2 false",
	} {
		var said, stood, live int
		var refused [2]int
		if _, err := fmt.Sscanf(row, "%d %d %d %d %d:", &said, &stood, &refused[0], &refused[1], &live); err != nil {
			t.Fatal(err)
		}
		a := &wire.Limits{}
		a.Said(wire.Stated{Subscriptions: said})
		a.Stood(stood)
		for _, n := range refused {
			if n != 0 {
				a.Refused(n)
			}
		}
		if got := fmt.Sprint(a.Past(live, 16), " ", a.Live(live)); !strings.HasSuffix(row, ": "+got) {
			t.Errorf("%s: %s, want %s", name, got, row)
		}
	}
}

// TestSizes: what a relay says is heeded within bounds, so that neither 1 nor a billion does harm.
func TestSizes(t *testing.T) {
	t.Parallel()
	for said, want := range map[wire.Stated]string{ // events, filters, bytes, whether filters of 30,000 bytes go together
		{}:                                    "500 10 65536 true",
		{Events: 500, Bytes: 131072}:          "500 20 117965 true",
		{0, 100, 5, 20000, false}:             "100 5 18000 false",
		{0, 1, 1, 1, false}:                   "50 3 16384 false",
		{0, 1 << 30, 1 << 30, 1 << 30, false}: "500 64 262144 true",
	} {
		a := &wire.Limits{}
		a.Said(said)
		if got := fmt.Sprint(a.Page(500), a.Filters(), a.Bytes(), a.Together(30_000)); got != want {
			t.Errorf("%+v: %s, want %s", said, got, want)
		}
	}
}

// TestPolicyCategory: relays may say anything, and there are few categories.
func TestPolicyCategory(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"restricted: members only": "restricted", "Blocked: you": "blocked", "auth-required: x": "auth-required",
		"invalid: y": "invalid", "invalid": "invalid", "anything: else": "other", "": "other",
	} {
		if got := wire.PolicyCategory(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
