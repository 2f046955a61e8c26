package repository_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

type refs = map[string]string

func TestSetRefsMakesThemExactlyWhatIsWanted(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	a := w.Commit("a", "a")
	b := w.Commit("b", "b")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	tag := w.Git("rev-parse", "v1")
	pack := w.Pack("main", "v1")
	event := "refs/nostr/" + strings.Repeat("e", 64)
	main, dev := "refs/heads/main", "refs/heads/dev"
	unborn := gittest.FirstBranch(t)

	type step struct {
		want, symbolic refs
		head           string
		changed        bool
		wantHead       string
	}
	for name, steps := range map[string][]step{
		"HEAD waits for its branch": {
			{want: refs{}, head: dev, wantHead: unborn},
			{want: refs{"refs/tags/v1": tag}, head: dev, changed: true, wantHead: unborn},
			{want: refs{main: a}, head: dev, changed: true, wantHead: unborn},
			{want: refs{main: a, dev: b}, head: dev, changed: true, wantHead: dev},
			{want: refs{main: a}, head: dev, changed: true, wantHead: dev}, // it was there
			{want: refs{main: a}, head: main, changed: true, wantHead: main},
			{want: refs{}, head: main, changed: true, wantHead: unborn},
		},
		"create, move, delete": {
			{want: refs{main: a, "refs/tags/v1": tag}, head: main, changed: true, wantHead: main},
			{want: refs{main: a, "refs/tags/v1": tag}, head: main, wantHead: main},
			{want: refs{main: b, dev: a}, head: dev, changed: true, wantHead: dev},
			{want: refs{}, changed: true, wantHead: unborn},
		},
		"a branch becomes a folder and comes back": {
			{want: refs{"refs/heads/x": a, dev: b}, changed: true, wantHead: unborn},
			{want: refs{"refs/heads/x/y/z": b, dev: b}, changed: true, wantHead: unborn},
			{want: refs{"refs/heads/x/y": a, "refs/heads/x/z": b}, changed: true, wantHead: unborn},
			{want: refs{"refs/heads/x": b}, changed: true, wantHead: unborn},
		},
		"symbolic": {
			{want: refs{main: a}, symbolic: refs{"refs/heads/latest": main}, changed: true, wantHead: unborn},
			{want: refs{main: a}, symbolic: refs{"refs/heads/latest": main}, wantHead: unborn},
			{want: refs{main: b, dev: a}, symbolic: refs{"refs/heads/latest": dev}, changed: true, wantHead: unborn},
			{want: refs{main: b, dev: a, "refs/heads/latest": a}, changed: true, wantHead: unborn},
			{want: refs{main: b, dev: a}, symbolic: refs{"refs/heads/latest": dev, "refs/tags/t": main}, changed: true, wantHead: unborn},
			{want: refs{dev: a}, symbolic: refs{"refs/heads/latest": main}, changed: true, wantHead: unborn}, // its branch is not there
			{want: refs{dev: a}, symbolic: refs{"refs/heads/dev2": dev}, changed: true, wantHead: unborn},
			{want: refs{dev: a, "refs/heads/dev2/x": b}, changed: true, wantHead: unborn},
			{want: refs{}, changed: true, wantHead: unborn},
		},
		"odd names": {
			{want: refs{`refs/heads/-x`: a, `refs/heads/"quoted"`: b, "refs/heads/🌱": a, "refs/tags/$(id)": b}, changed: true, wantHead: unborn},
			{want: refs{`refs/heads/"quoted"`: a}, head: `refs/heads/-x`, changed: true, wantHead: unborn},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Repo(t, gittest.Store(t), "refs")
			store(t, r, pack)
			if err := r.SetRef(t.Context(), event, a); err != nil {
				t.Fatal(err)
			}
			for i, s := range steps {
				changed, err := r.SetRefs(t.Context(), s.want, s.symbolic, s.head)
				if err != nil || changed != s.changed {
					t.Fatalf("step %d: changed %v, %v", i, changed, err)
				}
				got, err := r.Refs(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				want := maps.Clone(s.want)
				want[event] = a
				symbolic := refs{}
				for name, branch := range s.symbolic {
					if _, born := s.want[branch]; born {
						symbolic[name] = branch
					}
				}
				if !maps.Equal(got.ByName, want) || !maps.Equal(got.Symbolic, symbolic) || got.Head != s.wantHead {
					t.Fatalf("step %d: got %+v, want %v, symbolic %v, HEAD %s", i, got, want, symbolic, s.wantHead)
				}
			}
			if err := r.DeleteRef(t.Context(), event); err != nil {
				t.Error(err)
			}
			if err := r.DeleteRef(t.Context(), event); err != nil {
				t.Errorf("deleting what is not there: %v", err)
			}
		})
	}
}

func TestSetRefsIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	a := w.Commit("a", "a")
	b := w.Commit("b", "b")
	blob := w.Git("rev-parse", "main:a")
	r := gittest.Repo(t, gittest.Store(t), "refs")
	store(t, r, w.Pack("main"))
	before := refs{"refs/heads/main": a}
	if _, err := r.SetRefs(t.Context(), before, nil, "refs/heads/main"); err != nil {
		t.Fatal(err)
	}
	many := refs{}
	for i := range 300 {
		many[fmt.Sprintf("refs/heads/s%d", i)] = "refs/heads/main"
	}
	for name, tc := range map[string]struct {
		want, symbolic refs
		head           string
	}{
		"an object that is not there":      {want: refs{"refs/heads/main": b, "refs/heads/z": strings.Repeat("6", 40)}},
		"a branch at a blob":               {want: refs{"refs/heads/main": b, "refs/heads/z": blob}},
		"not a branch or tag":              {want: refs{"refs/heads/main": b, "refs/nostr/x": a}},
		"an illegal name":                  {want: refs{"refs/heads/main": b, "refs/heads/../x": a}},
		"a name with NUL":                  {want: refs{"refs/heads/main": b, "refs/heads/x\x00delete refs/heads/main": a}},
		"an id that is none":               {want: refs{"refs/heads/main": b, "refs/heads/x": "main"}},
		"an id of another format":          {want: refs{"refs/heads/main": strings.Repeat("a", 64)}},
		"HEAD elsewhere":                   {want: refs{"refs/heads/main": b}, head: "refs/tags/x"},
		"HEAD an option":                   {want: refs{"refs/heads/main": b}, head: "--delete"},
		"symbolic elsewhere":               {want: refs{"refs/heads/main": b}, symbolic: refs{"refs/heads/x": "HEAD"}},
		"direct and symbolic":              {want: refs{"refs/heads/main": b}, symbolic: refs{"refs/heads/main": "refs/heads/main"}},
		"more symbolic than one would use": {want: refs{"refs/heads/main": b}, symbolic: many},
	} {
		changed, err := r.SetRefs(t.Context(), tc.want, tc.symbolic, tc.head)
		if err == nil || changed {
			t.Errorf("%s: changed %v, %v", name, changed, err)
		}
		if later := name == "an object that is not there"; errors.Is(err, repository.ErrUnfit) == later {
			t.Errorf("%s: may it be later? %v", name, err)
		}
		got, err := r.Refs(t.Context())
		if err != nil || !maps.Equal(got.ByName, before) || got.Head != "refs/heads/main" {
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
