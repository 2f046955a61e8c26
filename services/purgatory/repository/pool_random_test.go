package repository_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// life is repositories of one identifier to which anything happens.
type life struct {
	*testing.T
	mu     sync.Mutex // the identifier's lock
	random *rand.Rand
	store  *repository.Store
	work   *gittest.Work
	known  []string         // commits
	log    []string         // what happened
	events map[int][]string // owner → references without an event
}

const lives = 3 // owners

// TestAnythingThatHappensLeavesRepositoriesWhole: random pushes, releases, deletions, removals and
// prunes, while others clone and prune at the same time. After each of them every repository and
// the pool pass git fsck, and in the end nothing is left that nothing names.
func TestAnythingThatHappensLeavesRepositoriesWhole(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := &life{T: t, random: rand.New(rand.NewPCG(seed, 0)), store: gittest.Store(t), work: gittest.NewWork(t), events: map[int][]string{}}
	stable := l.work.Commit("stable", gittest.Noise(50_000))
	l.known = append(l.known, stable)
	first := l.repo(0)
	store(t, first, l.work.Pack(stable))
	accept(t, first, refs{"refs/heads/stable": stable})

	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	var clones, prunes atomic.Int64
	others.Go(func() {
		for ctx.Err() == nil {
			dir := filepath.Join(t.TempDir(), "clone")
			if out, err := gittest.Try(t, t.TempDir(), "clone", "--quiet", "--no-local", "--single-branch", "--branch", "stable", first.Path(), dir); err != nil {
				t.Errorf("clone: %v\n%s", err, out)
			}
			clones.Add(1)
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			if err := l.prune(t.Context()); err != nil {
				t.Errorf("prune: %v", err)
			}
			prunes.Add(1)
		}
	})
	for step := range 40 {
		l.mu.Lock()
		l.step(step)
		for n := range lives {
			if r := l.named(n); r.Exists() {
				gittest.Fsck(t, r.Path())
			}
		}
		l.mu.Unlock()
		if t.Failed() {
			break
		}
	}
	stop()
	others.Wait()
	if t.Failed() {
		t.Fatalf("what happened:\n%s", strings.Join(l.log, "\n"))
	}
	t.Logf("%d clones and %d prunes beside it", clones.Load(), prunes.Load())
	l.end()
}

func (l *life) named(n int) *repository.Repo {
	l.Helper()
	r, err := l.store.Repo(nip34.RepoRef{PubKey: fmt.Sprintf("%064x", n+1), Identifier: "x"})
	must(l, err)
	return r
}

func (l *life) repo(n int) *repository.Repo {
	l.Helper()
	r := l.named(n)
	must(l, r.Ensure(l.Context()))
	return r
}

func (l *life) did(format string, args ...any) { l.log = append(l.log, fmt.Sprintf(format, args...)) }

// commit makes a commit on top of any that there is, or of none.
func (l *life) commit(step int) string {
	if l.random.IntN(6) == 0 {
		l.work.Git("checkout", "--quiet", "--orphan", fmt.Sprint("root", step))
	} else {
		l.work.Git("checkout", "--quiet", "--detach", l.any())
	}
	id := l.work.Commit(fmt.Sprint("file", l.random.IntN(5)), gittest.Noise(l.random.IntN(20_000))+fmt.Sprint(step))
	l.known = append(l.known, id)
	return id
}

func (l *life) any() string { return l.known[l.random.IntN(len(l.known))] }

// bring stores what an owner's repository lacks of a commit, as a push does: thin, on top of what
// is named there.
func (l *life) bring(r *repository.Repo, id string) {
	named, err := r.Named(l.Context(), nil)
	must(l, err)
	revs := []string{id}
	for _, have := range named {
		revs = append(revs, "^"+have)
	}
	store(l, r, l.work.Pack(revs...))
}

func (l *life) step(step int) {
	n := l.random.IntN(lives)
	r, ctx := l.repo(n), l.Context()
	switch l.random.IntN(8) {
	case 0, 1: // a push with its state
		id := l.commit(step)
		l.did("%d: main of %d is %s", step, n, id)
		l.bring(r, id)
		l.accept(n, map[string]string{main: id})
	case 2: // a state that names what is there already, if it is
		id := l.any()
		missing, err := r.Missing(ctx, []string{id})
		must(l, err)
		l.did("%d: dev of %d is %s, missing %v", step, n, id, missing)
		if err := r.Promote(ctx, []string{id}); err == nil {
			l.accept(n, map[string]string{"refs/heads/dev": id})
		} else if len(missing) == 0 {
			l.did("%v", err) // a leftover that is not whole
		}
	case 3: // branches are deleted
		l.did("%d: branches of %d are deleted", step, n)
		l.accept(n, nil)
	case 4: // a commit is pushed before its event
		id, event := l.commit(step), fmt.Sprintf("refs/nostr/%064x", step+1)
		l.did("%d: %s of %d is %s", step, event, n, id)
		l.bring(r, id)
		must(l, r.SetRef(ctx, event, id))
		l.events[n] = append(l.events[n], event)
	case 5: // and its event does not come
		for _, event := range l.events[n] {
			l.did("%d: %s of %d is deleted", step, event, n)
			must(l, r.DeleteRef(ctx, event))
		}
		delete(l.events, n)
	case 6: // packs are brought together
		l.did("%d: junk comes to %d, and packs are brought together", step, n)
		store(l, r, l.work.Pack(l.any()))
		must(l, r.Pool().OrphanOwn())
		_, err := r.Tidy(ctx)
		must(l, err)
	case 7: // a repository goes
		if n != 0 {
			l.did("%d: %d is removed", step, n)
			must(l, r.Remove(ctx))
			delete(l.events, n)
		}
	}
}

// accept sets the references of an owner, of which the first keeps one for ever.
func (l *life) accept(n int, want map[string]string) {
	want = maps.Clone(want)
	if n == 0 {
		if want == nil {
			want = map[string]string{}
		}
		want["refs/heads/stable"] = l.known[0]
	}
	accept(l, l.repo(n), want)
}

func (l *life) prune(ctx context.Context) error {
	_, err := l.store.Pool("x").Prune(ctx, repository.Pruning{
		Lock: func(context.Context) (func(), error) {
			l.mu.Lock()
			return l.mu.Unlock, nil
		},
		Wanted: func(context.Context) ([]string, error) { return nil, nil },
		Forget: func() {},
	})
	return err
}

// end removes what is without an event, and looks whether anything is left that nothing names.
func (l *life) end() {
	for n := range lives {
		for _, event := range l.events[n] {
			must(l, l.repo(n).DeleteRef(l.Context(), event))
		}
	}
	must(l, l.store.Pool("x").OrphanOwn())
	must(l, l.prune(l.Context()))
	needed := map[string]bool{}
	for n := range lives {
		r := l.named(n)
		if !r.Exists() {
			continue
		}
		gittest.Fsck(l, r.Path())
		if hasOwn(l, r) {
			l.Errorf("%d has objects of its own left", n)
		}
		for _, id := range strings.Fields(gittest.Git(l, r.Path(), "rev-list", "--objects", "--no-object-names", "--all")) {
			needed[id] = true
		}
	}
	there := l.objects(l.store.Pool("x").Path())
	if want := slices.Sorted(maps.Keys(needed)); !slices.Equal(there, want) {
		l.Errorf("the pool has %d objects, references need %d; what happened:\n%s", len(there), len(want), strings.Join(l.log, "\n"))
	}
}

// objects lists all objects that a repository can see.
func (l *life) objects(path string) []string {
	ids := strings.Fields(gittest.Git(l, path, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"))
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TestWhatComesWhileAPruneIsPrepared is kept: between its look at the references and the exchange
// of packs others write.
func TestWhatComesWhileAPruneIsPrepared(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	base := w.Commit("a", "1")
	old := w.Commit("b", gittest.Noise(1000))
	beyond := w.Commit("c", "3")
	w.Git("checkout", "--quiet", "--detach", old)
	fresh := w.Commit("d", "4")
	event := "refs/nostr/" + strings.Repeat("e", 64)
	for name, write := range map[string]func(t *testing.T, r *repository.Repo){
		"a branch at what was left": func(t *testing.T, r *repository.Repo) {
			accept(t, r, refs{main: base, "refs/heads/dev": old})
		},
		"a branch on top of what was left": func(t *testing.T, r *repository.Repo) {
			store(t, r, w.Pack(fresh, "^"+old))
			accept(t, r, refs{main: fresh})
		},
		"a commit without its event on top of what was left": func(t *testing.T, r *repository.Repo) {
			store(t, r, w.Pack(fresh, "^"+old))
			must(t, r.SetRef(t.Context(), event, fresh))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := owned(t, gittest.Store(t), 0, "x")
			store(t, r, w.Pack(beyond))
			accept(t, r, refs{main: beyond})
			accept(t, r, refs{main: base})
			locks := 0
			pruned, err := r.Pool().Prune(t.Context(), repository.Pruning{
				Lock: func(context.Context) (func(), error) {
					if locks++; locks == 2 {
						write(t, r)
					}
					return func() {}, nil
				},
				Wanted: func(context.Context) ([]string, error) { return nil, nil },
				Forget: func() {},
			})
			if err != nil || !pruned.Repacked || inFolder(t, r.Path(), beyond) || !inFolder(t, r.Path(), old) {
				t.Errorf("%+v (%v): what nothing needs is there: %v, what was named again: %v", pruned, err, inFolder(t, r.Path(), beyond), inFolder(t, r.Path(), old))
			}
			gittest.Fsck(t, r.Path())
			if again := gittest.Prune(t, r.Pool()); again.Repacked {
				t.Errorf("pruned again: %+v", again)
			}
		})
	}
}

// TestWhatGoesWhileAPruneIsPrepared ends no Prune: without the lock repositories are removed or
// made anew whose references it has seen.
func TestWhatGoesWhileAPruneIsPrepared(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	base := w.Commit("a", "1")
	beyond := w.Commit("b", gittest.Noise(1000))
	waiting := w.Commit("c", "3")
	event := "refs/nostr/" + strings.Repeat("e", 64)
	for name, happens := range map[string]func(t *testing.T, r *repository.Repo){
		"a repository is removed": func(t *testing.T, r *repository.Repo) {
			must(t, r.Remove(t.Context()))
		},
		"a repository is made anew": func(t *testing.T, r *repository.Repo) {
			must(t, r.Remove(t.Context()))
			must(t, r.Ensure(t.Context()))
		},
		"a commit without its event goes": func(t *testing.T, r *repository.Repo) {
			must(t, r.DeleteRef(t.Context(), event))
			packs, err := filepath.Glob(filepath.Join(r.Path(), "objects", "pack", "pack-*"))
			must(t, err)
			for _, file := range packs {
				must(t, os.Remove(file))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gittest.Store(t)
			first, second := owned(t, s, 0, "x"), owned(t, s, 1, "x")
			store(t, first, w.Pack(beyond))
			accept(t, first, refs{main: beyond})
			store(t, second, w.Pack(waiting, "^"+beyond))
			must(t, second.SetRef(t.Context(), event, waiting))
			accept(t, first, refs{main: base})
			locks := 0
			pruned, err := first.Pool().Prune(t.Context(), repository.Pruning{
				Lock: func(context.Context) (func(), error) {
					locks++
					return func() {
						if locks == 1 {
							happens(t, second)
						}
					}, nil
				},
				Wanted: func(context.Context) ([]string, error) { return nil, nil },
				Forget: func() {},
			})
			if err != nil || !pruned.Repacked || inFolder(t, first.Path(), beyond) || !inFolder(t, first.Path(), base) {
				t.Errorf("%+v (%v): what nothing needs is there: %v", pruned, err, inFolder(t, first.Path(), beyond))
			}
			gittest.Fsck(t, first.Path())
		})
	}
}
