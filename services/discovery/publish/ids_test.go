package publish_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/publish"
	"tendril.dev/services/discovery/wanted"
)

// index has the accepted root events of repositories, and counts the repositories that it was asked
// for.
type index struct {
	mu    sync.Mutex
	lists map[string][]target.ID
	asked int
}

// accept has it have the root events of some targets, and no others.
func (x *index) accept(targets map[string]target.Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lists = map[string][]target.ID{}
	for _, t := range targets {
		for ref, r := range t.Repos {
			x.lists[ref] = target.Union(x.lists[ref], r.Roots)
		}
	}
}

func (x *index) roots(_ context.Context, refs []string) (lists [][]target.ID, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked += len(refs)
	for _, ref := range refs {
		list := slices.Clone(x.lists[ref])
		slices.Reverse(list) // in any order
		lists = append(lists, list)
	}
	return lists, nil
}

// short are targets as discovery keeps them.
func short(targets map[string]target.Target) map[string]wanted.Target {
	out := map[string]wanted.Target{}
	for key, t := range targets {
		out[key] = wanted.Of(t)
	}
	return out
}

// TestWhatIsNotAcceptedAnyMoreIsLeftOut: a root event that has gone since it was wanted is neither
// in a change nor in a snapshot, is told of, and the sum is that of what is published.
func TestWhatIsNotAcceptedAnyMoreIsLeftOut(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	publishAll := func(wants map[string]target.Target) {
		t.Helper()
		if _, err := p.Publish(t.Context(), short(wants), p.Seq()); err != nil {
			t.Fatal(err)
		}
	}
	left := func(want ...wanted.Short) {
		t.Helper()
		if got := p.TakeUnaccepted(); !slices.Equal(got, want) {
			t.Errorf("told of %x, want %x", got, want)
		}
	}
	p.index.accept(relays(1, ids(0, 10)...))
	publishAll(relays(2, ids(0, 12)...))
	same(t, b, relays(2, ids(0, 10)...))
	left(wanted.ShortOf(ids(10, 11)[0]), wanted.ShortOf(ids(11, 12)[0]))
	left()
	for n := 12; n < 100; n++ { // until there has been a snapshot, which has no more of 0 to 5
		now := append(ids(5, 10), ids(12, n)...)
		p.Heard(ids(n-1, n))
		p.index.accept(relays(1, now...))
		publishAll(relays(1, append(ids(0, 10), ids(12, n)...)...))
		if list := p.TakeUnaccepted(); len(list) > 0 {
			if len(list) != 5 || list[0] != wanted.ShortOf(ids(0, 1)[0]) {
				t.Errorf("told of %x", list)
			}
			same(t, b, relays(1, now...))
			q, _ := start(t, b)
			if sent := send(t, q, relays(1, now...)); sent != 0 {
				t.Errorf("another replica wrote %d messages, though nothing else is wanted", sent)
			}
			return
		}
	}
	t.Fatal("no snapshot asked for what there is")
}

// TestAnIndexThatDoesNotAnswer: what needs it fails, and is published when it answers.
func TestAnIndexThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	away := errors.New("nobody answers")
	broken := true
	q := replica{index: &index{}}
	q.Publisher = publish.New(b, func(ctx context.Context, refs []string) ([][]target.ID, error) {
		if broken {
			return nil, away
		}
		return q.index.roots(ctx, refs)
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = q.Follow(ctx) }()
	all := relays(2, ids(0, 3)...)
	all["r2.example"] = target.Target{URL: "wss://r2.example", Repos: map[string]target.Repo{"30617:aa:y": {Level: proto.LevelFull}}}
	if n, err := bring(t, q, all); !errors.Is(err, away) || n != 1 {
		t.Fatalf("%d messages, %v; want 1 and what the index said", n, err)
	}
	broken = false
	if n := send(t, q, all); n != 2 {
		t.Errorf("%d messages, want 2", n)
	}
	same(t, b, all)
	if n := send(t, p, all); n != 0 {
		t.Errorf("another replica wrote %d messages", n)
	}
}

// TestWhateverIsHeardWhatIsWantedIsPublished: random targets, one after the other, by two replicas
// of which each hears of some of what comes and goes and starts anew now and then. After each of
// them the stream says just what is wanted.
func TestWhateverIsHeardWhatIsWantedIsPublished(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	rnd := rand.New(rand.NewPCG(9, 10))
	var replicas [2]replica
	var stops [2]func()
	for n := range replicas {
		replicas[n], stops[n] = start(t, b)
	}
	roots := map[string]map[target.ID]bool{} // by reference
	for n := range 100 {
		var changed []target.ID
		for range rnd.IntN(6) {
			ref, id := fmt.Sprint("30617:aa:", rnd.IntN(4)), ids(0, 60)[rnd.IntN(60)]
			if roots[ref] == nil {
				roots[ref] = map[target.ID]bool{}
			}
			if roots[ref][id] = !roots[ref][id]; !roots[ref][id] {
				delete(roots[ref], id)
			}
			if rnd.IntN(3) > 0 {
				changed = append(changed, id)
			}
		}
		wants := map[string]target.Target{}
		for r := range 3 {
			key := fmt.Sprintf("r%d.example", r)
			repos := map[string]target.Repo{}
			for ref, set := range roots {
				if rnd.IntN(6) > 0 {
					repos[ref] = target.Repo{Level: proto.LevelFull, Roots: slices.SortedFunc(maps.Keys(set), target.ID.Compare)}
				}
			}
			if rnd.IntN(8) > 0 {
				wants[key] = target.Target{URL: "wss://" + key, Repos: repos}
			}
		}
		first := rnd.IntN(2)
		for _, at := range []int{first, 1 - first} {
			if rnd.IntN(15) == 0 {
				stops[at]()
				replicas[at], stops[at] = start(t, b)
			}
			replicas[at].Heard(slices.Clone(changed))
			if sent := send(t, replicas[at], wants); sent > 0 && at != first {
				t.Fatalf("%d: the second replica wrote %d messages", n, sent)
			}
			if list := replicas[at].TakeUnaccepted(); len(list) > 0 {
				t.Fatalf("%d: %d are told not to be accepted", n, len(list))
			}
		}
		if got, _ := folded(t, b); !equal(got, wants) {
			t.Fatalf("%d: published %+v\nwant %+v", n, got, wants)
		}
	}
}

// equal compares targets; lists without ids are the same.
func equal(a, b map[string]target.Target) bool {
	return maps.EqualFunc(a, b, func(a, b target.Target) bool {
		return a.URL == b.URL && maps.EqualFunc(a.Repos, b.Repos, target.Repo.Equal)
	})
}
