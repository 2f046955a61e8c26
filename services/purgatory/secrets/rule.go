package secrets

import (
	"math"
	"regexp"
	"strings"
	"sync"
)

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
