package target

import (
	"hash/maphash"
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
	l := lists{seed: maphash.MakeSeed(), known: map[uint64]list{}}
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

// TestSharedAlike: of two lists of which the parts that are looked at are the same each stays what
// it is.
func TestSharedAlike(t *testing.T) {
	t.Parallel()
	l := lists{seed: maphash.MakeSeed(), known: map[uint64]list{}}
	one, two := ascending(0, 1000), ascending(0, 1000)
	two[1] = ID{0, 0, 1}
	if l.key(one) != l.key(two) {
		t.Fatal("the lists do not look alike")
	}
	for range 2 {
		for _, ids := range [][]ID{one, two} {
			if got := l.of(slices.Clone(ids)); !slices.Equal(got, ids) {
				t.Fatal("got other ids than were asked for")
			}
		}
	}
	runtime.KeepAlive(one)
}
