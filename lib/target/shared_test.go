package target

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

func ascending(from, to int) (ids []ID) {
	for i := from; i < to; i++ {
		ids = append(ids, ID{byte(i >> 8), byte(i)})
	}
	return ids
}

// TestSharedOnce: whoever asks for the same ids gets the same list, also where lists look alike,
// and nothing is kept of those that nobody has any more.
func TestSharedOnce(t *testing.T) {
	t.Parallel()
	l := newLists()
	var got [8][][]ID
	var all sync.WaitGroup
	for n := range got {
		all.Go(func() {
			for size := fewestShared; size < 20*fewestShared; size++ {
				got[n] = append(got[n], l.of(ascending(0, size)))
			}
		})
	}
	all.Wait()
	for _, of := range got[1:] {
		for i := range of {
			if !sameList(of[i], got[0][i]) {
				t.Fatal("the same ids are kept twice")
			}
		}
	}
	for i, ids := range got[0] {
		if want := ascending(0, fewestShared+i); !slices.Equal(ids, want) || cap(ids) != len(ids) {
			t.Fatalf("asked for %d ids, got %d that are others or have room for more", len(want), len(ids))
		}
	}
	if few := ascending(0, fewestShared-1); !sameList(l.of(few), few) || len(l.known) != len(got[0]) {
		t.Error("a short list is kept")
	}
	runtime.KeepAlive(got)
	got = [8][][]ID{}
	kept := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.known)
	}
	for n := 0; kept() > 0; n++ {
		if n == 5000 {
			t.Fatalf("%d lists are kept that nobody has", kept())
		}
		runtime.GC()
		runtime.Gosched()
	}
}

// TestSharedAlike: lists of which the parts that are looked at are the same stay what they are, and
// each lies in memory once. Where very many look alike only a few are kept, however often those are
// asked for.
func TestSharedAlike(t *testing.T) {
	t.Parallel()
	l := newLists()
	many := make([][]ID, 2*mostAlike)
	for i := range many {
		many[i] = ascending(0, 1000)
		many[i][1] = ID{0, 0, byte(i)}
	}
	key := l.key(many[0])
	var first [][]ID
	for range 3 {
		for i, ids := range many {
			if l.key(ids) != key {
				t.Fatal("the lists do not look alike")
			}
			got := l.of(slices.Clone(ids))
			if !slices.Equal(got, ids) {
				t.Fatal("got other ids than were asked for")
			}
			if len(first) < len(many) {
				first = append(first, got)
			} else if i < mostAlike && !sameList(got, first[i]) {
				t.Fatalf("list %d is kept twice", i)
			}
		}
		if len(l.known[key]) != mostAlike {
			t.Fatalf("%d lists are kept that look alike", len(l.known[key]))
		}
	}
	runtime.KeepAlive(first)
	one, last := first[1], many[len(many)-1]
	first = nil
	for n := 0; !sameList(l.of(last), l.of(slices.Clone(last))); n++ {
		if n == 1000 {
			t.Fatal("there is no room though nobody has the others any more")
		}
		runtime.GC()
	}
	runtime.KeepAlive(one)
}

// TestSharedResult: what is worked out of the same lists is worked out once, of others again, and
// no more results are remembered than there is room for.
func TestSharedResult(t *testing.T) {
	t.Parallel()
	l := newLists()
	worked := 0
	union := func(a, b []ID) []ID {
		return l.result("union", func() []ID { worked++; return Union(a, b) }, a, b)
	}
	a, b, c := l.of(ascending(0, 500)), l.of(ascending(400, 600)), l.of(ascending(550, 700))
	one := union(a, b)
	if again := union(a, b); !sameList(one, again) || worked != 1 || !slices.Equal(one, ascending(0, 600)) {
		t.Errorf("%d and %d ids, worked out %d times", len(one), len(again), worked)
	}
	for i, of := range [][2][]ID{{b, a}, {a[:499], b}, {a, c}, {a, nil}} {
		if got := union(of[0], of[1]); worked != 2+i || !slices.Equal(got, Union(of[0], of[1])) {
			t.Errorf("%d ids of other lists, worked out %d times", len(got), worked)
		}
	}
	if got := l.result("missing", func() []ID { return Missing(a, b) }, a, b); !slices.Equal(got, ascending(0, 400)) {
		t.Errorf("%d ids by other work", len(got))
	}
	many := make([][]ID, mostOf+1)
	for range 2 {
		worked = 0
		if l.result("many", func() []ID { worked++; return one }, many...); worked != 1 {
			t.Error("what is made of very many lists is remembered")
		}
	}
	var kept [][]ID
	for n := range 2 * mostResults {
		kept = append(kept, union(a, l.of(ascending(1000+n, 1100+n))))
	}
	if len(l.results) > mostResults {
		t.Errorf("%d results are remembered", len(l.results))
	}
	if worked = 0; !sameList(union(a, b), one) || worked != 1 {
		t.Errorf("a result that was forgotten was worked out %d times", worked)
	}
	runtime.KeepAlive(kept)
}

// TestSharedResultGone: a result that nobody has any more is worked out again.
func TestSharedResultGone(t *testing.T) {
	t.Parallel()
	l := newLists()
	a, b := l.of(ascending(0, 500)), l.of(ascending(500, 600))
	worked := 0
	for n := 0; worked < 2; n++ {
		if n == 5000 {
			t.Fatal("a list is kept that nobody has")
		}
		if ids := l.result("union", func() []ID { worked++; return Union(a, b) }, a, b); len(ids) != 600 {
			t.Fatalf("%d ids", len(ids))
		}
		runtime.GC()
	}
}
