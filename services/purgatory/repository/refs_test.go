package repository_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

type refs = map[string]string

// set lets main name a commit, and fails the test if that cannot be.
func set(t testing.TB, r *repository.Locked, id string) {
	t.Helper()
	must(t, r.SetRefs(t.Context(), refs{"refs/heads/main": id}, nil, "refs/heads/main"))
}

func TestSetRefsMakesThemExactlyWhatIsWanted(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	a := w.Commit("a", "a")
	b := w.Commit("b", "b")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	tag := w.Git("rev-parse", "v1")
	pack := w.Pack("main", "v1")
	event := "refs/nostr/" + strings.Repeat("e", 64)
	main, dev, latest := "refs/heads/main", "refs/heads/dev", "refs/heads/latest"
	unborn, err := gittest.Lock(t, gittest.Repo(t, gittest.Store(t), "new")).Head()
	must(t, err)

	gone, end := context.WithCancel(t.Context()) // by which no git can be started
	end()
	type step struct {
		want, symbolic refs
		head, wantHead string // wantHead: "" is what a new repository has
	}
	for name, steps := range map[string][]step{
		"HEAD waits for its branch": {
			{want: refs{}, head: dev},
			{want: refs{main: a}, head: dev},
			{want: refs{main: a, dev: b, "refs/tags/v1": tag}, head: dev, wantHead: dev},
			{want: refs{main: a}, head: main, wantHead: main},
			{want: refs{}, head: main},
		},
		"a branch becomes a folder and comes back": {
			{want: refs{"refs/heads/x": a, dev: b}},
			{want: refs{"refs/heads/x/y/z": b, dev: b}},
			{want: refs{"refs/heads/x": b}},
		},
		"symbolic": {
			{want: refs{main: a}, symbolic: refs{latest: main}},
			{want: refs{main: b, dev: a}, symbolic: refs{latest: dev, "refs/tags/t": main}},
			{want: refs{dev: a}, symbolic: refs{latest: main}}, // its branch is not there
			{want: refs{dev: a}, symbolic: refs{"refs/heads/dev2": dev}, head: "refs/heads/dev2", wantHead: "refs/heads/dev2"},
		},
		"odd names": {
			{want: refs{`refs/heads/-x`: a, `refs/heads/"quoted"`: b, "refs/heads/🌱": a, "refs/tags/$(id)": b}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Lock(t, gittest.Repo(t, gittest.Store(t), "refs"))
			gittest.Fill(t, r.Repo, pack)
			must(t, r.SetRef(t.Context(), event, a))
			for i, s := range steps {
				must(t, r.SetRefs(t.Context(), s.want, s.symbolic, s.head))
				must(t, r.SetRefs(gone, s.want, s.symbolic, s.head)) // nothing changes
				want, symbolic := maps.Clone(s.want), maps.Clone(s.symbolic)
				want[event] = a
				maps.DeleteFunc(symbolic, func(_, branch string) bool { return s.want[branch] == "" })
				for _, how := range []string{"as files", "packed"} {
					got, err := r.Refs()
					if err != nil || !maps.Equal(got.ByName, want) || !maps.Equal(got.Symbolic, symbolic) || got.Head != cmp.Or(s.wantHead, unborn) {
						t.Fatalf("step %d, %s: got %+v, want %v, symbolic %v, HEAD %s, %v", i, how, got, want, symbolic, s.wantHead, err)
					}
					gittest.Git(t, r.Path, "pack-refs", "--all") // as an operator may
				}
			}
			must(t, errors.Join(r.DeleteRef(t.Context(), event), r.DeleteRef(t.Context(), event))) // what is not there is no error
		})
	}
}

func TestSetRefsIsAllOrNothing(t *testing.T) {
	r, w := begin(t)
	a := w.Commit("a", "a")
	b := w.Commit("b", "b")
	blob := w.Git("rev-parse", "main:a")
	gittest.Fill(t, r.Repo, w.Pack("main"))
	set(t, r, a)
	many := refs{}
	for i := range 300 {
		many[fmt.Sprintf("refs/heads/s%d", i)] = "refs/heads/main"
	}
	for name, tc := range map[string]struct {
		want, symbolic refs
		err            error
	}{
		"an object that is not there":      {refs{"refs/heads/main": b, "refs/heads/z": strings.Repeat("6", 40)}, nil, repository.ErrBroken},
		"a branch at a blob":               {refs{"refs/heads/main": b, "refs/heads/z": blob}, nil, repository.ErrUnfit},
		"not a branch or tag":              {refs{"refs/heads/main": b, "refs/nostr/x": a}, nil, repository.ErrUnfit},
		"a name with NUL":                  {refs{"refs/heads/main": b, "refs/heads/x\x00delete refs/heads/main": a}, nil, repository.ErrUnfit},
		"an id of another format":          {refs{"refs/heads/main": strings.Repeat("a", 64)}, nil, repository.ErrUnfit},
		"symbolic and an option":           {refs{"refs/heads/main": b}, refs{"--delete": "refs/heads/main"}, repository.ErrUnfit},
		"more symbolic than one would use": {refs{"refs/heads/main": b}, many, repository.ErrUnfit},
	} {
		if err := r.SetRefs(t.Context(), tc.want, tc.symbolic, ""); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := r.Refs(); err != nil || !maps.Equal(got.ByName, refs{"refs/heads/main": a}) || got.Head != "refs/heads/main" {
			t.Errorf("%s: left %+v, %v", name, got, err)
		}
	}
	for _, name := range []string{"HEAD", "refs/nostr/..", "-d", "refs/heads/a b", ""} {
		if err := r.SetRef(t.Context(), name, a); err == nil {
			t.Errorf("the reference %q was set", name)
		}
		if err := r.DeleteRef(t.Context(), name); err == nil {
			t.Errorf("the reference %q was deleted", name)
		}
	}
}

// TestRefsAreThoseThatGitSees, with other files among theirs.
func TestRefsAreThoseThatGitSees(t *testing.T) {
	r, w := begin(t)
	a := w.Commit("a", "a")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	gittest.Git(t, w.Dir, "push", "--quiet", r.Path, "main", "v1", "main:refs/heads/b")
	gittest.Git(t, r.Path, "pack-refs", "--all")
	b := w.Commit("b", "b")
	gittest.Git(t, w.Dir, "push", "--quiet", r.Path, "main", ":refs/heads/b")
	for name, content := range map[string]string{
		"refs/heads/empty": "", "refs/heads/half": a[:20], "refs/heads/new.lock": a + "\n", "refs/heads/gone": "ref: refs/heads/none\n",
	} {
		must(t, os.WriteFile(filepath.Join(r.Path, name), []byte(content), 0o644))
	}
	got, err := r.Refs()
	if want := (refs{"refs/heads/main": b, "refs/tags/v1": w.Git("rev-parse", "v1")}); err != nil || !maps.Equal(got.ByName, want) || len(got.Symbolic) != 0 {
		t.Errorf("%+v, %v; want %v", got, err, want)
	}
}
