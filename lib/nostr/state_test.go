package nostr

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// As ngit writes them, and with what else may stand there.
func TestParseState(t *testing.T) {
	t.Parallel()
	ev := event(KindState, alice,
		Tag{"d", "x"}, Tag{"HEAD", "ref: refs/heads/main"},
		Tag{"refs/heads/main", commit1, commit2[:7]}, Tag{"refs/heads/next", commit2}, Tag{"refs/heads/also", commit1},
		Tag{"refs/heads/current", "ref: refs/heads/next"},
		Tag{"refs/tags/v1", sha256Commit}, Tag{"refs/tags/v1^{}", strings.Repeat("9", 40)},
		Tag{"refs/heads/main", commit1},
		Tag{"refs/nostr/" + key('1'), "anything"}, Tag{"refs/pull/1/head", "anything"}, Tag{"alt", "state"}, Tag{})
	got, err := ParseState(ev)
	if err != nil {
		t.Fatal(err)
	}
	want := &State{
		Event: ev, Identifier: "x", Head: "refs/heads/main",
		Refs: map[string]string{
			"refs/heads/main": commit1, "refs/heads/next": commit2, "refs/heads/also": commit1, "refs/tags/v1": sha256Commit,
		},
		Symbolic: map[string]string{"refs/heads/current": "refs/heads/next"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if objects, want := got.Objects(), []string{commit1, commit2, sha256Commit}; !slices.Equal(objects, want) {
		t.Errorf("Objects = %v, want %v", objects, want)
	}
}

func TestParseStateRefuses(t *testing.T) {
	state := func(tags ...Tag) *Event { return event(KindState, alice, append(Tags{{"d", "x"}}, tags...)...) }
	manyRefs := func(n int) *Event {
		ev := state()
		for i := range n {
			ev.Tags = append(ev.Tags, Tag{fmt.Sprintf("refs/heads/b%d", i), commit1})
		}
		return ev
	}
	check(t, ParseState, []refusal{
		{"no references", state(), ""},
		{"as many as may be", manyRefs(MaxRefs), ""},
		{"too many", manyRefs(MaxRefs + 1), "more than 10000"},
		{"wrong kind", event(KindAnnouncement, alice, Tag{"d", "x"}), "kind 30617"},
		{"no d", event(KindState, alice), "missing or empty"},
		{"author", event(KindState, "..", Tag{"d", "x"}), "author"},
		{"name leaves the folder", state(Tag{"refs/heads/../../config", commit1}), `contains ".."`},
		{"name is a lock", state(Tag{"refs/heads/main.lock", commit1}), ".lock"},
		{"peeled branch", state(Tag{"refs/heads/main^{}", commit1}), "contains '^'"},
		{"peeled illegal tag", state(Tag{"refs/tags/a b^{}", commit1}), "contains ' '"},
		{"two values", state(Tag{"refs/heads/main", commit1}, Tag{"refs/heads/main", commit2}), "two values"},
		{"two HEADs", state(Tag{"HEAD", "ref: refs/heads/a"}, Tag{"HEAD", "ref: refs/heads/b"}), "two values"},
		{"HEAD at a commit", state(Tag{"HEAD", commit1}), ""},
		{"a branch below a branch", state(Tag{"refs/heads/a", commit1}, Tag{"refs/heads/a/b/c", commit1}), "cannot stand"},
		{"a branch below a symbolic one", state(Tag{"refs/heads/a/b", commit1}, Tag{"refs/heads/a", "ref: refs/heads/c"}), "cannot stand"},
	}...)
}

// TestImpossibleStates are taken, and known for what they are: they are not hunted for.
func TestImpossibleStates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tag        Tag
		impossible bool
		head       string
	}{
		{Tag{"refs/heads/x"}, true, ""}, {Tag{"refs/heads/x", commit1[:39]}, true, ""}, {Tag{"refs/tags/x", "commit1"}, true, ""}, {Tag{"refs/heads/x", "--upload-pack=x"}, true, ""},
		{Tag{"refs/heads/x", "ref: refs/tags/v1"}, true, ""}, {Tag{"refs/heads/x", "ref: refs/heads/../x"}, true, ""}, {Tag{"refs/heads/x", "refs/heads/main"}, true, ""},
		{Tag{"refs/heads/x", strings.Repeat("0", 40)}, true, ""}, {Tag{"refs/tags/v1^{}", "ref: refs/heads/main"}, true, ""},
		{Tag{"HEAD", "main"}, true, ""}, {Tag{"HEAD", "ref: refs/../../x"}, true, ""}, {Tag{"HEAD", commit1}, false, ""},
		{Tag{"HEAD", "ref: refs/heads/main"}, false, "refs/heads/main"}, {Tag{"HEAD", "refs/heads/main"}, false, "refs/heads/main"},
		{Tag{"HEAD", "ref:  refs/heads/main"}, false, "refs/heads/main"}, {Tag{"refs/heads/x", strings.ToUpper(commit2)}, false, ""},
	} {
		s, err := ParseState(event(KindState, alice, Tag{"d", "x"}, Tag{"refs/heads/main", commit1}, c.tag))
		if err != nil || s.Satisfiable() == c.impossible || s.Head != c.head || s.Refs["refs/heads/main"] != commit1 || slices.Contains(s.Impossible, c.tag[0]) != c.impossible {
			t.Errorf("%q: %+v, %v", c.tag, s, err)
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add("refs/heads/main", commit1, "refs/tags/v1^{}", commit2, "HEAD", "ref: refs/heads/main")
	f.Add("refs/heads/main", "made up", "refs/tags/v1", "", "HEAD", "refs/heads/main")
	f.Add("refs/heads/a", "ref: refs/heads/b", "refs/heads/a/b", commit1, "refs/heads/..", "ref: ")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2, n3, v3 string) {
		s, err := ParseState(event(KindState, alice, Tag{"d", "x"}, Tag{n1, v1}, Tag{n2, v2}, Tag{n3, v3}))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("the error is no sentence: %q", err)
			}
			return
		}
		for name, id := range s.Refs {
			if CheckRefName(name) != nil || !IsObjectID(id) || strings.HasSuffix(name, "^{}") || slices.Contains(s.Impossible, name) {
				t.Fatalf("%q is %q", name, id)
			}
		}
		for name, branch := range s.Symbolic {
			if CheckRefName(name) != nil || CheckRefName(branch) != nil || !strings.HasPrefix(branch, "refs/heads/") || slices.Contains(s.Impossible, name) {
				t.Fatalf("%q follows %q", name, branch)
			}
		}
		if s.Head != "" && (CheckRefName(s.Head) != nil || !strings.HasPrefix(s.Head, "refs/heads/")) {
			t.Fatalf("HEAD is %q", s.Head)
		}
	})
}
