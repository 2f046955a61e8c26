package main

import (
	"fmt"
	"strings"
)

// summary is what was measured, in the order in which it was.
type summary struct{ lines [][2]string }

func (s *summary) add(what, value string) { s.lines = append(s.lines, [2]string{what, value}) }

// String is a line for each.
func (s *summary) String() string {
	width := 0
	for _, l := range s.lines {
		width = max(width, len(l[0]))
	}
	var b strings.Builder
	for _, l := range s.lines {
		fmt.Fprintf(&b, "%-*s  %s\n", width, l[0], l[1])
	}
	return b.String()
}
