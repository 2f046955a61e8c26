package allowance_test

import (
	"testing"
	"time"

	"tendril.dev/services/relayconn/allowance"
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
		got := [3]bool{allowance.WantsQuiet(text), allowance.WantsFewer(text), allowance.WantsSmaller(text)}
		if got != want {
			t.Errorf("%q: quiet, fewer, smaller %v, want %v", text, got, want)
		}
	}
}

func TestQuiet(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	a := allowance.New(time.Minute)
	if a.Quiet(noon) || a.QuietAfter(noon.Add(-time.Hour)) {
		t.Error("a relay that has said nothing wants quiet")
	}
	a.Quieten(noon)
	if !a.Quiet(noon.Add(59*time.Second)) || a.Quiet(noon.Add(time.Minute)) {
		t.Error("the quiet does not take a minute")
	}
	if !a.QuietAfter(noon.Add(59*time.Second)) || a.QuietAfter(noon.Add(time.Minute)) {
		t.Error("the quiet is not remembered")
	}
}
