package nostr_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// As ngit writes them, and with what else may stand there.
func TestParseState(t *testing.T) {
	t.Parallel()
	ev := written("30618", "ALICE", "d,x;HEAD,ref: refs/heads/main;refs/heads/main,COMMIT1,2222222;refs/heads/next,COMMIT2;refs/heads/also,COMMIT1;"+
		"refs/heads/current,ref: refs/heads/next;refs/tags/v1,SHA256;refs/tags/v1^{},9999999999999999999999999999999999999999;refs/heads/main,COMMIT1;refs/nostr/ID1,anything;refs/pull/1/head,anything;alt,state;")
	got, err := ParseState(ev)
	fixture.Must(t, err)
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
	check(t, ParseState, `
		no references                  | 30618 | ALICE | d,x                                                        |
		as many as may be              | 30618 | ALICE | d,xREFS                                                    |
		too many                       | 30618 | ALICE | d,xREFS;refs/heads/more,COMMIT1                            | more than 10000
		wrong kind                     | 30617 | ALICE | d,x                                                        | kind 30617
		no d                           | 30618 | ALICE |                                                            | missing or empty
		author                         | 30618 | ..    | d,x                                                        | author
		name leaves the folder         | 30618 | ALICE | d,x;refs/heads/../../config,COMMIT1                        | contains ".."
		name is a lock                 | 30618 | ALICE | d,x;refs/heads/main.lock,COMMIT1                           | .lock
		peeled branch                  | 30618 | ALICE | d,x;refs/heads/main^{},COMMIT1                             | contains '^'
		peeled illegal tag             | 30618 | ALICE | d,x;refs/tags/a b^{},COMMIT1                               | contains ' '
		two values                     | 30618 | ALICE | d,x;refs/heads/main,COMMIT1;refs/heads/main,COMMIT2        | two values
		two HEADs                      | 30618 | ALICE | d,x;HEAD,ref: refs/heads/a;HEAD,ref: refs/heads/b          | two values
		HEAD at a commit               | 30618 | ALICE | d,x;HEAD,COMMIT1                                           |
		a branch below a branch        | 30618 | ALICE | d,x;refs/heads/a,COMMIT1;refs/heads/a/b/c,COMMIT1          | cannot stand
		another between them           | 30618 | ALICE | d,x;refs/heads/a,COMMIT1;refs/heads/a-b,COMMIT1;refs/heads/a/b,COMMIT1 | cannot stand
		a branch below a symbolic one  | 30618 | ALICE | d,x;refs/heads/a/b,COMMIT1;refs/heads/a,ref: refs/heads/c  | cannot stand`,
		"REFS", many(";refs/heads/b%d,COMMIT1", MaxRefs))
}

// TestDeepNamesCostNoMore to read than others: one event of the largest size kept the writer busy for a
// quarter of a second.
func TestDeepNamesCostNoMore(t *testing.T) {
	t.Parallel()
	cost := func(name string) time.Duration {
		ev := &Event{Kind: KindState, PubKey: strings.Repeat("a", 64), Tags: Tags{{"d", "x"}}}
		for n := range 470 {
			ev.Tags = append(ev.Tags, Tag{fmt.Sprintf("refs/heads/%d%s", n, name), commit1})
		}
		least := time.Hour
		for range 5 {
			began := time.Now()
			_, err := ParseState(ev)
			fixture.Must(t, err)
			least = min(least, time.Since(began))
		}
		return least
	}
	deep, flat := cost(strings.Repeat("/a", 500)), cost(strings.Repeat("/"+strings.Repeat("a", 99), 10))
	if deep > 20*flat {
		t.Errorf("deep names take %v, flat ones of the same length %v", deep, flat)
	}
}

// TestImpossibleStates are taken, and known for what they are: they are not hunted for.
func TestImpossibleStates(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(`
		refs/heads/x                                          | impossible |
		refs/heads/x,111111111111111111111111111111111111111  | impossible |
		refs/tags/x,commit1                                   | impossible |
		refs/heads/x,--upload-pack=x                          | impossible |
		refs/heads/x,ref: refs/tags/v1                        | impossible |
		refs/heads/x,ref: refs/heads/../x                     | impossible |
		refs/heads/x,refs/heads/main                          | impossible |
		refs/heads/x,0000000000000000000000000000000000000000 | impossible |
		refs/tags/v1^{},ref: refs/heads/main                  | impossible |
		HEAD,main                                             | impossible |
		HEAD,ref: refs/../../x                                | impossible |
		HEAD,COMMIT1                                          |            |
		HEAD,ref: refs/heads/main                             |            | refs/heads/main
		HEAD,refs/heads/main                                  |            | refs/heads/main
		HEAD,ref:  refs/heads/main                            |            | refs/heads/main
		refs/heads/x,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA |            |`) {
		s, err := ParseState(written("30618", "ALICE", "d,x;refs/heads/main,COMMIT1;"+c[0]))
		fixture.Must(t, err)
		name, _, _ := strings.Cut(c[0], ",")
		if impossible := c[1] != ""; s.Satisfiable() == impossible || s.Head != c[2] || s.Refs["refs/heads/main"] != commit1 || slices.Contains(s.Impossible, name) != impossible {
			t.Errorf("%s: %+v", c[0], s)
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
