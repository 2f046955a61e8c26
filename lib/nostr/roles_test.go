package nostr_test

import (
	"slices"
	"strings"
	"testing"

	. "tendril.dev/lib/nostr"
)

// TestRoles: what an announcement by ALICE says about who maintains its repository. Upper-case keys
// are written as UPPER.
func TestRoles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, tags, active, listed, leads string }{
		{"nothing", "", "yes", "", ""},
		{"maintainers", "maintainers,BOB,ALICE,CAROL,BOB,rubbish", "yes", "BOB CAROL", ""},
		{"a record hides maintainers", "maintainers,BOB;m,CAROL", "yes", "CAROL", ""},
		{"a void record hides maintainers", "maintainers,BOB;m,CAROL,soon", "yes", "", ""},
		{"a moderator hides maintainers", "maintainers,BOB;o,CAROL", "yes", "", ""},
		{"a record without a key hides maintainers", "maintainers,BOB;m", "yes", "", ""},
		{"a lead and maintainers", "M,BOB;m,CAROL;m,BOB", "yes", "BOB CAROL", "BOB"},
		{"the author leads", "M,ALICE;m,BOB", "yes", "BOB", "ALICE"},
		{"two leads", "M,ALICE;M,BOB", "yes", "BOB", "ALICE BOB"},
		{"a lead twice", "M,BOB;M,BOB,5", "yes", "BOB", "BOB"},
		{"a lead that ended and one that has not", "M,BOB,1,2;M,CAROL", "yes", "CAROL", "CAROL"},
		{"begun", "m,BOB,100", "yes", "BOB", ""},
		{"begins in a thousand years", "m,BOB,33000000000", "yes", "BOB", ""},
		{"ended", "m,BOB,100,200", "yes", "", ""},
		{"ends in a thousand years", "m,BOB,100,33000000000", "yes", "", ""},
		{"begun again", "m,BOB,100,200,300", "yes", "BOB", ""},
		{"deferred", "m,BOB,100,defer", "yes", "", ""},
		{"deferred alone is a start", "m,BOB,defer", "yes", "", ""},
		{"deferred and begun again", "m,BOB,100,defer,300", "yes", "", ""},
		{"deferred as a third one", "m,BOB,100,200,defer", "yes", "", ""},
		{"not a number", "m,BOB,1e3", "yes", "", ""},
		{"negative", "m,BOB,-1", "yes", "", ""},
		{"with a sign", "m,BOB,+1", "yes", "", ""},
		{"empty", "m,BOB,", "yes", "", ""},
		{"beyond 64 bits", "m,BOB,18446744073709551616", "yes", "", ""},
		{"one of several records is active", "m,BOB,1,2;m,BOB,3", "yes", "BOB", ""},
		{"a moderator", "o,BOB", "yes", "", ""},
		{"no key", "m,rubbish;M,rubbish", "yes", "", ""},
		{"an upper-case key is no invitation", "m,UPPERBOB", "yes", "", ""},
		{"an upper-case lead is a lead", "M,UPPERBOB", "yes", "", "BOB"},
		{"the own role", "m,ALICE", "yes", "", ""},
		{"the own role has ended", "m,ALICE,100,200;m,BOB", "no", "BOB", ""},
		{"the own role has ended, in upper case", "m,UPPERALICE,100,200", "no", "", ""},
		{"the own role in upper case", "m,UPPERALICE", "yes", "", ""},
		{"the own role is void", "m,ALICE,soon", "no", "", ""},
		{"the own role is a moderator's", "o,ALICE", "no", "", ""},
		{"moderator and maintainer", "o,ALICE;m,ALICE", "yes", "", ""},
		{"lead no more, maintainer still", "M,ALICE,1,2;m,ALICE,2", "yes", "", ""},
		{"another tag of one letter", "p,BOB;maintainers,CAROL", "yes", "CAROL", ""},
	} {
		ev := written("30617", "ALICE", strings.TrimSuffix("d,x;"+c.tags, ";"))
		for _, tag := range ev.Tags {
			for i, value := range tag {
				if key, upper := strings.CutPrefix(value, "UPPER"); upper {
					tag[i] = strings.ToUpper(key)
				}
			}
		}
		a, err := ParseAnnouncement(ev)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		listed, leads := strings.Fields(words.Replace(c.listed)), strings.Fields(words.Replace(c.leads))
		if a.Active != (c.active == "yes") || !slices.Equal(a.Listed, listed) || !slices.Equal(a.Leads, leads) {
			t.Errorf("%s: active %v, listed %q, leads %q", c.name, a.Active, a.Listed, a.Leads)
		}
	}
}
