// Package secrets finds secrets in the content of files: nostr secret keys, private keys in PEM, and
// tokens of services whose shape is known. It is a help for whoever is about to publish one by
// mistake and no fence: what is split, encoded or encrypted is not found.
package secrets

import (
	"bytes"
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	// MaxContent is the size of the largest file that is worth looking at, in bytes. Larger ones are
	// data rather than what people write.
	MaxContent = 1 << 20

	// MaxFindings is how many secrets are told of one file.
	MaxFindings = 10

	// maxChecks bounds the places of one file that are looked at closely.
	maxChecks = 4096
	// maxToken is how many bytes of a token are looked at.
	maxToken = 2048
	// binaryHead is how far git looks for a byte of zero to tell a binary file.
	binaryHead = 8000
)

// allowMarker on a line says that what looks like a secret there is none. It is gitleaks' own.
var allowMarker = []byte("gitleaks:allow")

// Finding is a secret in a file. The secret itself is not kept, so that nobody can print it.
type Finding struct {
	Rule string // what was found, by the name of its rule: "nostr-secret-key", "github-pat"
	Line int    // where it begins, from 1
}

// Find returns the secrets of a file in the order in which they begin, MaxFindings at most. Binary
// files, and files of more than MaxContent bytes, have none.
func Find(content []byte) []Finding {
	if !Readable(content) {
		return nil
	}
	l := look{content: content}
	l.keys()
	l.tokens()
	slices.SortStableFunc(l.found, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var found []Finding
	line, counted := 1, 0
	for _, f := range l.found {
		line += bytes.Count(content[counted:f.start], newline)
		counted = f.start
		if n := len(found); n > 0 && found[n-1] == (Finding{f.rule, line}) {
			continue
		}
		if found = append(found, Finding{Rule: f.rule, Line: line}); len(found) == MaxFindings {
			break
		}
	}
	return found
}

// look is a look through one file.
type look struct {
	content []byte
	checks  int // places that were looked at closely
	found   []span
}

// span is where a secret begins, and which rule found it.
type span struct {
	start int
	rule  string
}

// check looks closely at a place for what one rule finds.
func (l *look) check(r rule, at int) bool {
	l.checks++
	start, end, ok := r.find(l.content, at)
	if !ok || allowed(l.content, start, end) {
		return false
	}
	l.found = append(l.found, span{start, r.name})
	return true
}

// enough reports whether no more is to be looked at.
func (l *look) enough() bool { return l.checks >= maxChecks || len(l.found) >= 2*MaxFindings }

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

// tokens looks for secrets that are one row of letters from their beginning.
func (l *look) tokens() {
	rules := compiled()
	eachRun(l.content, func(from, to int) bool {
		rules.keywords.each(l.content[:to], from, func(at int, k keyword) bool {
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

// Readable reports whether a file is one to look at: no larger than MaxContent, and no binary file
// as git tells them.
func Readable(content []byte) bool {
	return len(content) <= MaxContent && bytes.IndexByte(content[:min(len(content), binaryHead)], 0) < 0
}

// Mentions reports whether a file has what keys begin with. People write that in place of a key, and
// later complete it.
func Mentions(content []byte) bool {
	if bytes.Contains(content, []byte(pemKey)) {
		return true
	}
	// Its last byte is the rarest.
	for rest := content; ; {
		i := bytes.IndexByte(rest, nsecBegin[len(nsecBegin)-1])
		if i < 0 {
			return false
		}
		if bytes.HasSuffix(rest[:i+1], []byte(nsecBegin)) {
			return true
		}
		rest = rest[i+1:]
	}
}

// leastRest is how many letters and digits in a row can be the rest of a secret.
const leastRest = 20

// MayContinue reports whether a part of a file may hold the rest of a secret that begins before it:
// many letters and digits in a row, some of each.
func MayContinue(part []byte) bool {
	run, digits := 0, 0
	for _, c := range part {
		switch {
		case c >= '0' && c <= '9':
			digits++
			run++
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == '-', c == '+', c == '/':
			run++
		default:
			run, digits = 0, 0
		}
		if run >= leastRest && digits > 0 && digits < run {
			return true
		}
	}
	return false
}

var newline = []byte("\n")

// allowed reports whether a line of what was found from start to end has the allow marker.
func allowed(content []byte, start, end int) bool {
	const longestLine = 4 << 10
	from := bytes.LastIndexByte(content[max(0, start-longestLine):start], '\n') + 1 + max(0, start-longestLine)
	first := cutLine(content[from:min(len(content), start+longestLine)])
	last := cutLine(content[end:min(len(content), end+longestLine)])
	return bytes.Contains(first, allowMarker) || bytes.Contains(last, allowMarker)
}

func cutLine(text []byte) []byte {
	line, _, _ := bytes.Cut(text, newline)
	return line
}

// rule finds secrets of one kind.
type rule struct {
	name   string
	begins []string
	// find returns where the secret stands that has one of begins at a place of the content.
	find func(content []byte, at int) (start, end int, ok bool)
}

var pemRule = rule{name: "private-key", find: findPEM}

// tokenRule is a rule for tokens that an expression describes.
type tokenRule struct {
	id      string
	begins  []string // at least three bytes each
	shape   string   // of the token from its beginning; its first group, if it has one, is the token
	entropy float64  // bits a byte that the token must have more of
}

type ruleSet struct {
	all      []rule
	keywords *keywordIndex
}

// compiled returns the rules, which are made when they are first needed.
var compiled = sync.OnceValue(func() *ruleSet {
	set := &ruleSet{all: []rule{{name: "nostr-secret-key", begins: []string{nsecBegin}, find: findNsec}}}
	for _, r := range tokenRules {
		set.all = append(set.all, rule{name: r.id, begins: r.begins, find: r.compile()})
	}
	var order []string
	by := map[string][]int{}
	for i, r := range set.all {
		for _, text := range r.begins {
			if by[text] == nil {
				order = append(order, text)
			}
			by[text] = append(by[text], i)
		}
	}
	keywords := make([]keyword, len(order))
	for i, text := range order {
		keywords[i] = keyword{text: text, rules: by[text]}
	}
	set.keywords = newKeywordIndex(keywords)
	return set
})

// compile makes the expression begin at a place, so that it fails fast where it does not match.
func (r tokenRule) compile() func(content []byte, at int) (int, int, bool) {
	first := regexp.MustCompile(`\A(?:` + r.shape + `)`)
	later := regexp.MustCompile(`\A(?s:.)(?:` + r.shape + `)`) // a \b looks at the byte before
	return func(content []byte, at int) (int, int, bool) {
		from, shape := at, first
		if at > 0 {
			from, shape = at-1, later
		}
		m := shape.FindSubmatchIndex(content[from:min(len(content), at+maxToken)])
		if m == nil {
			return 0, 0, false
		}
		start, end := at, from+m[1]
		if len(m) > 2 && m[2] >= 0 {
			start, end = from+m[2], from+m[3]
		}
		token := content[start:end]
		return start, end, entropy(token) > r.entropy && !placeholder(token)
	}
}

// entropy is Shannon's, in bits a byte.
func entropy(text []byte) float64 {
	var counts [256]int
	for _, c := range text {
		counts[c]++
	}
	bits := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(text))
			bits -= p * math.Log2(p)
		}
	}
	return bits
}

// placeholder reports whether a token is one that documentation writes in place of a real one.
func placeholder(token []byte) bool {
	lower := strings.ToLower(string(token))
	for _, filler := range []string{"example", "abcdefghijklm", "xxxxxx", "123456789", "......", "000000"} {
		if strings.Contains(lower, filler) {
			return true
		}
	}
	return false
}
