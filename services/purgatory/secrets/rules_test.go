package secrets

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// gitleaks are the rules of gitleaks v8.30.1 as they are published, byte by byte:
// https://github.com/gitleaks/gitleaks/blob/v8.30.1/config/gitleaks.toml
//
//go:embed testdata/gitleaks-v8.30.1.toml
var gitleaks string

const gitleaksSum = "e163e53b9e7e8a8511e77271e2b323ed057759542a6d988258afe3a1fa329caf"

// field finds a line of a rule in TOML.
func field(rule, name string) string {
	m := regexp.MustCompile(`(?m)^` + name + ` = (?:'''(.*)'''|"(.*)"|(.*))$`).FindStringSubmatch(rule)
	if m == nil {
		return ""
	}
	return m[1] + m[2] + m[3]
}

// TestRulesAreThoseOfGitleaks: each rule has the expression and the entropy that it has there.
func TestRulesAreThoseOfGitleaks(t *testing.T) {
	t.Parallel()
	if sum := sha256.Sum256([]byte(gitleaks)); hex.EncodeToString(sum[:]) != gitleaksSum {
		t.Errorf("the rules of gitleaks have changed: their sum is %x", sum)
	}
	theirs := map[string]string{}
	for _, rule := range strings.Split(gitleaks, "\n[[rules]]\n")[1:] {
		theirs[field(rule, "id")] = rule
	}
	var ids []string
	for _, r := range tokenRules {
		ids = append(ids, r.id)
		entropy, _ := strconv.ParseFloat(field(theirs[r.id], "entropy"), 64)
		if shape := field(theirs[r.id], "regex"); shape != r.shape || entropy != r.entropy {
			t.Errorf("%s is\n%s %v\nwant\n%s %v", r.id, r.shape, r.entropy, shape, entropy)
		}
	}
	if len(ids) < 90 || !slices.IsSorted(ids) || len(slices.Compact(ids)) != len(tokenRules) {
		t.Errorf("%d rules, want all of them in order and once", len(ids))
	}
}

// TestEveryRuleFindsWhatItDescribes: with each of its beginnings, in a line of its own and in a
// string.
func TestEveryRuleFindsWhatItDescribes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, r := range tokenRules {
		tree, err := syntax.Parse(r.shape, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		missing := slices.Clone(r.begins)
		for range 20_000 {
			var b strings.Builder
			generate(&b, tree, random)
			token := strings.TrimSuffix(strings.TrimSuffix(b.String(), `\n`), `\r`)
			token = strings.TrimRight(token, " ;'\"`\n\r\t\f")
			i := slices.IndexFunc(missing, func(begin string) bool {
				return len(token) >= len(begin) && isWord(token[len(token)-1]) && strings.EqualFold(token[:len(begin)], begin)
			})
			if i < 0 {
				continue
			}
			token = missing[i] + token[len(missing[i]):] // where any case is right, the usual one
			if entropy([]byte(token)) < r.entropy+0.2 || placeholder([]byte(token)) {
				continue
			}
			for _, text := range []string{"\nkey " + token + " \n", `{"key":"` + token + `"}`} {
				// Where two rules match, either may name it.
				if found := Find([]byte(text)); len(found) == 0 {
					t.Errorf("%s: %q is not found", r.id, text)
				}
			}
			missing = slices.Delete(missing, i, i+1)
			if len(missing) == 0 {
				break
			}
		}
		if len(missing) > 0 {
			t.Errorf("%s: nothing that it describes begins with %q", r.id, missing)
		}
	}
}

// generate writes a text that an expression describes, but for its assertions.
func generate(b *strings.Builder, re *syntax.Regexp, random *rand.Rand) {
	least, most := re.Min, re.Max
	switch re.Op {
	case syntax.OpLiteral:
		b.WriteString(string(re.Rune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte('.')
	case syntax.OpCharClass:
		for range 1000 { // a letter that can be typed
			pick := 2 * random.IntN(len(re.Rune)/2)
			c := re.Rune[pick] + rune(random.IntN(int(re.Rune[pick+1]-re.Rune[pick])+1))
			if c > ' ' && c < 0x7f {
				b.WriteRune(c)
				return
			}
		}
	case syntax.OpConcat, syntax.OpCapture:
		for _, sub := range re.Sub {
			generate(b, sub, random)
		}
		return
	case syntax.OpAlternate:
		generate(b, re.Sub[random.IntN(len(re.Sub))], random)
		return
	case syntax.OpStar:
		least, most = 0, 40
	case syntax.OpPlus:
		least, most = 1, 40
	case syntax.OpQuest:
		least, most = 0, 1
	}
	if len(re.Sub) == 0 {
		return
	}
	if most < 0 {
		most = least + 40
	}
	for range least + random.IntN(most-least+1) {
		generate(b, re.Sub[0], random)
	}
}
