package secrets

import (
	"bytes"
	"cmp"
	"slices"
)

const (
	// maxChecks bounds the places of one window that are looked at closely.
	maxChecks = 4096
	// maxToken is how many bytes of a token are looked at.
	maxToken = 2048
	// longestLine is how far before and behind a secret the allow marker is looked for.
	longestLine = 4 << 10
)

// allowMarker on a line says that what looks like a secret there is none. It is gitleaks' own.
var allowMarker = []byte("gitleaks:allow")

var newline = []byte("\n")

// look is a look through one text.
type look struct {
	content []byte
	checks  int // places that may still be looked at closely
	found   []span
}

// span is where a secret begins, and which rule found it.
type span struct {
	start int
	rule  string
}

// through returns what begins in the content at from or later and before until, in order. What it
// returns is valid until the next call.
func (l *look) through(content []byte, from, until int) []span {
	*l = look{content: content, checks: maxChecks, found: l.found[:0]}
	l.keys()
	l.tokens(from)
	l.found = slices.DeleteFunc(l.found, func(s span) bool { return s.start < from || s.start >= until })
	slices.SortStableFunc(l.found, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	return l.found
}

// check looks closely at a place for what one rule finds.
func (l *look) check(r rule, at int) bool {
	l.checks--
	start, end, ok := r.find(l.content, at)
	if !ok || allowed(l.content, start, end) {
		return false
	}
	l.found = append(l.found, span{start, r.name})
	return true
}

// enough reports whether nothing more needs a look. What begins before the window's own part
// counts too, so twice as much is looked for as is reported.
func (l *look) enough() bool { return l.checks <= 0 || len(l.found) >= 8*MaxFindings }

// keys looks for private keys in PEM, which begin with words.
func (l *look) keys() {
	for at := 0; !l.enough(); at += len(pemKey) {
		next := bytes.Index(l.content[at:], []byte(pemKey))
		if next < 0 {
			return
		}
		at += next
		l.check(pemRule, at)
	}
}

// tokens looks for secrets that are one row of letters from their beginning, at from or later.
func (l *look) tokens(from int) {
	rules := compiled()
	eachRun(l.content[from:], func(start, end int) bool {
		rules.keywords.each(l.content[:from+end], from+start, func(at int, k keyword) bool {
			for _, i := range k.rules {
				if l.check(rules.all[i], at) {
					break
				}
			}
			return !l.enough()
		})
		return !l.enough()
	})
}

// leastRun is how many letters of tokens the shortest secret has in a row.
const leastRun = 18

// eachRun calls found with each row of at least leastRun letters that tokens have, until found
// returns false. Of most text it reads only a few bytes of each leastRun.
func eachRun(content []byte, found func(from, to int) bool) {
	for at := 0; at+leastRun <= len(content); {
		last := at + leastRun - 1
		for last >= at && tokenLetters[content[last]] {
			last--
		}
		if last >= at {
			at = last + 1
			continue
		}
		to := at + leastRun
		for to < len(content) && tokenLetters[content[to]] {
			to++
		}
		if !found(at, to) {
			return
		}
		at = to + 1
	}
}

// tokenLetters are the letters of tokens and of Base64.
var tokenLetters = func() (is [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/=.~") {
		is[c] = true
	}
	return is
}()

// allowed reports whether the first or the last line of what was found from start to end has the
// allow marker.
func allowed(content []byte, start, end int) bool {
	from := max(0, start-longestLine)
	from += bytes.LastIndexByte(content[from:start], '\n') + 1
	return lineAllows(content, from, start) || lineAllows(content, end, end)
}

// lineAllows reports whether the line that begins at from has the marker, before at+longestLine.
func lineAllows(content []byte, from, at int) bool {
	line, _, _ := bytes.Cut(content[from:min(len(content), at+longestLine)], newline)
	return bytes.Contains(line, allowMarker)
}
