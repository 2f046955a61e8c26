package repository

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
)

// Git refuses a transaction in which one name is a folder of another, even if one of the two is
// deleted in it.
func TestPlannedTransactionsNeverConflict(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "a/b", "a/c", "a/b/c", "a/b/d", "b/a", "b/a/c"}
	for seed := range uint64(5000) {
		random := rand.New(rand.NewPCG(seed, 1))
		some := func(id string) (direct, symbolic map[string]string) {
			direct, symbolic = map[string]string{}, map[string]string{}
			for _, i := range random.Perm(len(names)) {
				name := headsPrefix + names[i]
				if random.IntN(2) == 0 || conflicts(name, direct) || conflicts(name, symbolic) {
					continue
				}
				if random.IntN(4) == 0 {
					symbolic[name] = headsPrefix + names[random.IntN(len(names))]
				} else {
					direct[name] = fmt.Sprint(id, random.IntN(2))
				}
			}
			return direct, symbolic
		}
		now := Refs{}
		now.ByName, now.Symbolic = some("x")
		want, symbolic := some("x")
		plan := planRefs(now, want, symbolic)

		direct, links := maps.Clone(now.ByName), maps.Clone(now.Symbolic)
		for _, changes := range [][]refChange{plan.before, plan.changes} {
			touched := maps.Clone(direct)
			maps.Copy(touched, links)
			for _, c := range changes {
				if conflicts(c.name, touched) {
					t.Fatalf("seed %d: %q stands in the way, from %+v to %v, %v", seed, c.name, now, want, symbolic)
				}
				if c.to != "" {
					touched[c.name] = c.to
				}
				if c.from != "" && direct[c.name] != c.from {
					t.Fatalf("seed %d: %q is expected at %q", seed, c.name, c.from)
				}
			}
			for _, c := range changes {
				delete(direct, c.name)
				delete(links, c.name)
				if c.to != "" {
					direct[c.name] = c.to
				}
			}
		}
		for name, branch := range plan.symbolic {
			if conflicts(name, direct) || conflicts(name, links) {
				t.Fatalf("seed %d: the symbolic %q cannot be made", seed, name)
			}
			delete(direct, name)
			links[name] = branch
		}
		for name, branch := range symbolic {
			if _, born := want[branch]; !born {
				delete(symbolic, name)
			}
		}
		if !maps.Equal(direct, want) || !maps.Equal(links, symbolic) {
			t.Fatalf("seed %d: from %+v came %v, %v, want %v, %v", seed, now, direct, links, want, symbolic)
		}
	}
}

// conflicts reports whether a name and any of the others cannot both be files.
func conflicts(name string, others map[string]string) bool {
	for other := range others {
		if strings.HasPrefix(other, name+"/") || strings.HasPrefix(name, other+"/") {
			return true
		}
	}
	return false
}

func TestMessagesAreBoundedAndTellNoPaths(t *testing.T) {
	t.Parallel()
	var messages tail
	for i := range 1000 {
		fmt.Fprintf(&messages, "error: /srv/git/npub1x/a.git/objects: line %d\x1b[31m\xff\r\n", i)
	}
	got := messages.text("/srv/git/npub1x/a.git")
	if len(got) > maxMessages || !strings.HasSuffix(got, "error: ./objects: line 999[31m?") || !strings.HasPrefix(got, "error: ./objects: line ") {
		t.Errorf("%d bytes: %q … %q", len(got), got[:40], got[len(got)-40:])
	}
	var one tail
	one.Write([]byte(strings.Repeat("x", 3*maxMessages)))
	if got := one.text("/"); len(got) != maxMessages {
		t.Errorf("kept %d bytes", len(got))
	}
}
