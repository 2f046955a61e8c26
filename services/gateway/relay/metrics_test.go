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
		`["CLOSE","a"]`:                  "CLOSE",
		`["CLOSED","a",""]`:              "CLOSED",
		`["COUNT","a",{}]`:               "COUNT",
		`["NEG-OPEN","a"]`:               "NEG-OPEN",
		`["OK"]`:                         "OK",
		`["AUTH`:                         "other",
		`["event",{}]`:                   "other",
		`["EVENT2",{}]`:                  "other",
		`["E` + strings.Repeat("E", 100): "other",
		`[EVENT]`:                        "other",
		"\x00\xff":                       "other",
		"":                               "other",
	} {
		if got := typeOf([]byte(message)); got != want {
			t.Errorf("%q: %s, want %s", message, got, want)
		}
	}
}
