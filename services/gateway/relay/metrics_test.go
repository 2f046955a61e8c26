package relay

import (
	"strings"
	"testing"
)

// TestTypeOf: strangers write what is read here, so that only known types become labels.
func TestTypeOf(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`["EVENT",{}]`:                   "EVENT",
		" \n[ \t\"REQ\" , \"a\",{}]":     "REQ",
		`["CLOSED","a",""]`:              "CLOSED",
		`["NEG-OPEN","a"]`:               "NEG-OPEN",
		`["AUTH`:                         "other",
		`["event",{}]`:                   "other",
		`["E` + strings.Repeat("E", 100): "other",
		"\x00\xff":                       "other",
		"":                               "other",
	} {
		if got := typeOf([]byte(message)); got != want {
			t.Errorf("%q: %s, want %s", message, got, want)
		}
	}
}
