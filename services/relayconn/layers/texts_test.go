package layers

import (
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"weak"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/target"
	"tendril.dev/services/relayconn/items"
)

func ids(from, to int) (ids []target.ID) {
	for i := from; i < to; i++ {
		ids = append(ids, target.ID{byte(i >> 8), byte(i)})
	}
	return ids
}

// texted is the ids that filters of a group name.
func texted(t *testing.T, group []nostr.Filter) (ids []string) {
	for i, name := range rootTags {
		if ids = group[i].Tags[name]; len(group) != 3 || len(group[i].Tags) != 1 || &ids[0] != &group[0].Tags["e"][0] {
			t.Errorf("a group is %v", group)
		}
	}
	return ids
}

// TestTextsOnce: filters of several connections that name the same ids share their text, and
// nothing is kept of it when there are none any more.
func TestTextsOnce(t *testing.T) {
	t.Parallel()
	h := hundreds{known: map[[32]byte]weak.Pointer[hundred]{}}
	var lists [8][][]string
	var all sync.WaitGroup
	for n := range lists {
		all.Go(func() {
			for chunk := range slices.Chunk(ids(0, 1050), perFilter) {
				lists[n] = append(lists[n], texted(t, h.of(chunk)))
			}
		})
	}
	all.Wait()
	for _, list := range lists[1:] {
		for i := range list {
			if &list[i][0] != &lists[0][i][0] {
				t.Fatal("the same ids are kept twice")
			}
		}
	}
	for i, id := range ids(0, 1050) {
		if lists[0][i/perFilter][i%perFilter] != id.String() {
			t.Fatalf("id %d is %s", i, lists[0][i/perFilter][i%perFilter])
		}
	}
	if last := lists[0][10]; len(last) != 50 || cap(last) != 50 || len(h.known) != 11 {
		t.Errorf("the last of %d lists has %d ids", len(h.known), len(last))
	}
	few := texted(t, h.of(ids(5000, 5001)))
	if len(h.known) != 11 || cap(few) != 1 || few[0] != ids(5000, 5001)[0].String() {
		t.Errorf("the text of %d ids takes the room of %d, and is %v", len(few), cap(few), few)
	}
	runtime.KeepAlive(lists)
	kept := func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.known)
	}
	for n := 0; kept() > 0; n++ {
		if n == 5000 {
			t.Fatalf("%d lists are kept that nobody uses", kept())
		}
		runtime.GC()
		runtime.Gosched()
	}
}

// TestFiltersShareTexts: two connections that are asked for the same have filters of the same text
// and of the same tags.
func TestFiltersShareTexts(t *testing.T) {
	t.Parallel()
	set := items.Set{Roots: ids(2000, 2300)}
	one, two := TwoAndThree(set), TwoAndThree(items.Set{Roots: slices.Clone(set.Roots)})
	if len(one) != 9 || len(two) != 9 {
		t.Fatalf("%d and %d filters", len(one), len(two))
	}
	for i := range one {
		if reflect.ValueOf(one[i].Tags).Pointer() != reflect.ValueOf(two[i].Tags).Pointer() {
			t.Fatal("the same tags are kept twice")
		}
		for name, values := range one[i].Tags {
			if &two[i].Tags[name][0] != &values[0] {
				t.Fatal("the same ids are kept twice")
			}
		}
	}
}
