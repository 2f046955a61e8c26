package nip34

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

// As ngit writes them, and with what else may stand there.
func TestParseState(t *testing.T) {
	t.Parallel()
	ev := event(KindState, alice,
		nostr.Tag{"d", "x"}, nostr.Tag{"HEAD", "ref: refs/heads/main"},
		nostr.Tag{"refs/heads/main", commit1, commit2[:7]}, nostr.Tag{"refs/heads/next", commit2}, nostr.Tag{"refs/heads/also", commit1},
		nostr.Tag{"refs/heads/current", "ref: refs/heads/next"},
		nostr.Tag{"refs/tags/v1", sha256Commit}, nostr.Tag{"refs/tags/v1^{}", strings.Repeat("9", 40)},
		nostr.Tag{"refs/heads/main", commit1},
		nostr.Tag{"refs/nostr/" + key('1'), "anything"}, nostr.Tag{"refs/pull/1/head", "anything"}, nostr.Tag{"alt", "state"}, nostr.Tag{})
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
	t.Parallel()
	d := nostr.Tag{"d", "x"}
	manyRefs := func(n int) *nostr.Event {
		ev := event(KindState, alice, d)
		for i := range n {
			ev.Tags = append(ev.Tags, nostr.Tag{fmt.Sprintf("refs/heads/b%d", i), commit1})
		}
		return ev
	}
	for _, c := range []struct {
		name  string
		ev    *nostr.Event
		wrong string
	}{
		{"no references", event(KindState, alice, d), ""},
		{"as many as may be", manyRefs(MaxRefs), ""},
		{"too many", manyRefs(MaxRefs + 1), "more than 10000"},
		{"wrong kind", event(KindAnnouncement, alice, d), "kind 30617"},
		{"no d", event(KindState, alice), "missing or empty"},
		{"identifier", event(KindState, alice, nostr.Tag{"d", "a\nb"}), "control"},
		{"author", event(KindState, "..", d), "author"},
		{"no value", event(KindState, alice, d, nostr.Tag{"refs/heads/main"}), "no value"},
		{"empty value", event(KindState, alice, d, nostr.Tag{"refs/heads/main", ""}), "neither"},
		{"short value", event(KindState, alice, d, nostr.Tag{"refs/heads/main", commit1[:39]}), "neither"},
		{"value in capitals", event(KindState, alice, d, nostr.Tag{"refs/heads/main", strings.Repeat("A", 40)}), "neither"},
		{"value that means deletion", event(KindState, alice, d, nostr.Tag{"refs/heads/main", strings.Repeat("0", 40)}), "neither"},
		{"option for a value", event(KindState, alice, d, nostr.Tag{"refs/heads/main", "--upload-pack=x"}), "neither"},
		{"symbolic to a tag", event(KindState, alice, d, nostr.Tag{"refs/heads/main", "ref: refs/tags/v1"}), "neither"},
		{"symbolic to an illegal name", event(KindState, alice, d, nostr.Tag{"refs/heads/main", "ref: refs/heads/../x"}), `contains ".."`},
		{"symbolic to nothing", event(KindState, alice, d, nostr.Tag{"refs/heads/main", "ref: refs/heads/"}), "empty component"},
		{"symbolic peeled", event(KindState, alice, d, nostr.Tag{"refs/tags/v1^{}", "ref: refs/heads/main"}), "neither"},
		{"name leaves the folder", event(KindState, alice, d, nostr.Tag{"refs/heads/../../config", commit1}), `contains ".."`},
		{"name is a lock", event(KindState, alice, d, nostr.Tag{"refs/heads/main.lock", commit1}), ".lock"},
		{"peeled branch", event(KindState, alice, d, nostr.Tag{"refs/heads/main^{}", commit1}), "contains '^'"},
		{"peeled illegal tag", event(KindState, alice, d, nostr.Tag{"refs/tags/a b^{}", commit1}), "contains ' '"},
		{"peeled rubbish", event(KindState, alice, d, nostr.Tag{"refs/tags/v1^{}", "rubbish"}), "neither"},
		{"no name", event(KindState, alice, d, nostr.Tag{"refs/heads/", commit1}), "empty component"},
		{"two values", event(KindState, alice, d, nostr.Tag{"refs/heads/main", commit1}, nostr.Tag{"refs/heads/main", commit2}), "two values"},
		{"two HEADs", event(KindState, alice, d, nostr.Tag{"HEAD", "ref: refs/heads/a"}, nostr.Tag{"HEAD", "ref: refs/heads/b"}), "two values"},
		{"HEAD at a commit", event(KindState, alice, d, nostr.Tag{"HEAD", commit1}), ""},
		{"HEAD at rubbish", event(KindState, alice, d, nostr.Tag{"HEAD", "main"}), "neither"},
		{"HEAD outside of branches", event(KindState, alice, d, nostr.Tag{"HEAD", "ref: refs/../../x"}), "neither"},
		{"a branch below a branch", event(KindState, alice, d, nostr.Tag{"refs/heads/a", commit1}, nostr.Tag{"refs/heads/a/b/c", commit1}), "cannot stand"},
		{"a branch below a symbolic one", event(KindState, alice, d, nostr.Tag{"refs/heads/a/b", commit1}, nostr.Tag{"refs/heads/a", "ref: refs/heads/c"}), "cannot stand"},
		{"a branch beside a branch", event(KindState, alice, d, nostr.Tag{"refs/heads/a", commit1}, nostr.Tag{"refs/heads/ab/c", commit1}, nostr.Tag{"refs/tags/a/b", commit1}), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, err := ParseState(c.ev)
			mentions(t, err, c.wrong)
			if (s == nil) != (err != nil) {
				t.Errorf("state %v with error %v", s, err)
			}
		})
	}
}

func FuzzParseState(f *testing.F) {
	f.Add("refs/heads/main", commit1, "refs/tags/v1^{}", commit2, "HEAD", "ref: refs/heads/main")
	f.Add("refs/heads/a", "ref: refs/heads/b", "refs/heads/a/b", commit1, "refs/heads/..", "ref: ")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2, n3, v3 string) {
		s, err := ParseState(event(KindState, alice, nostr.Tag{"d", "x"}, nostr.Tag{n1, v1}, nostr.Tag{n2, v2}, nostr.Tag{n3, v3}))
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("the error is no sentence: %q", err)
			}
			return
		}
		for name, id := range s.Refs {
			if CheckRefName(name) != nil || !IsObjectID(id) || strings.HasSuffix(name, "^{}") {
				t.Fatalf("%q is %q", name, id)
			}
		}
		for name, branch := range s.Symbolic {
			if CheckRefName(name) != nil || CheckRefName(branch) != nil || !strings.HasPrefix(branch, "refs/heads/") {
				t.Fatalf("%q follows %q", name, branch)
			}
		}
		if s.Head != "" && (CheckRefName(s.Head) != nil || !strings.HasPrefix(s.Head, "refs/heads/")) {
			t.Fatalf("HEAD is %q", s.Head)
		}
		if len(s.Objects()) > len(s.Refs) {
			t.Fatalf("%d references need %d objects", len(s.Refs), len(s.Objects()))
		}
	})
}
