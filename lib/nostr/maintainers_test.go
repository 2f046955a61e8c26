package nostr_test

import (
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// TestMaintainerSets: a>bc is an announcement by a that names b and c; with "+" it is newer, with
// "-" its id is lower. After them stands the set of each owner.
func TestMaintainerSets(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(`
		no announcement                         |                | a=
		alone                                   | a>             | a=a b=
		one maintainer who announced nothing    | a>b            | a=ab b=
		trust is not mutual                     | a>b b>         | a=ab b=b
		a chain                                 | a>b b>c c>d    | a=abcd b=bcd c=cd
		a chain with a missing link             | a>b c>d        | a=ab c=cd
		a loop                                  | a>b b>c c>a    | a=abc b=abc c=abc
		a newer announcement takes trust back   | a>c+ a>b       | a=ac
		at the same second the lower id counts  | a>b a>c-       | a=ac`) {
		var announcements []*Announcement
		for text := range strings.FieldsSeq(c[1]) {
			maintainers := Tag{"maintainers"}
			for _, letter := range strings.Trim(text[2:], "+-") {
				maintainers = append(maintainers, key(byte(letter)))
			}
			a := announce(t, key(text[0]), "x", maintainers)
			switch text[len(text)-1] {
			case '+':
				a.Event.CreatedAt++
			case '-':
				a.Event.ID = key('1')
			}
			announcements = append(announcements, a)
		}
		for set := range strings.FieldsSeq(c[2]) {
			got := set[:2]
			for letter := range strings.SplitSeq("abcd", "") {
				if MaintainerSet(key(set[0]), announcements)[key(letter[0])] {
					got += letter
				}
			}
			if got != set {
				t.Errorf("%s: %s, want %s", c[0], got, set)
			}
		}
	}
}
