package relayconn

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// TestThreads: what lies below the root events of a repository is asked about, eight generations
// deep and up to the limit of a thread, in any order of arrival, until no list has the root. While
// many come it is not worked out, and what was heard is not read.
func TestThreads(t *testing.T) {
	t.Parallel()
	id := func(n int) string { return fmt.Sprintf("%064x", n) }
	all := NewTargets(nil, &world{}, time.Hour, 12, nil, quiet)
	repository := &list{ref: x, users: map[*Wanted]bool{}}
	all.lists[x] = repository
	all.set(repository, []string{id(0)})
	hear := func(n, parent int, tag string) {
		ev := &nostr.Event{ID: id(n), Kind: nostr.KindComment, Tags: nostr.Tags{{tag, id(parent)}}}
		all.hear([]eventdb.Record{{Event: ev}})
	}
	below := func() int {
		all.fold()
		return len(repository.below)
	}
	for n := 1; n <= 10; n++ {
		hear(n, n-1, string("eEq"[n%3]))
	}
	if n := below(); n != generations {
		t.Errorf("of a chain of ten %d are asked about", n)
	}
	for n := 20; n <= 30; n++ {
		hear(n, 0, "e")
	}
	if n := below(); n != 12 || !slices.IsSorted(repository.below) {
		t.Errorf("of a thread of many %d are asked about: %v", n, repository.below)
	}
	hear(101, 100, "e") // before what it names is known, which is a root event too
	all.set(repository, []string{id(0), id(100)})
	if n := below(); n != 13 {
		t.Errorf("%d are asked about with one that was heard early", n)
	}
	all.threads.whole, all.threads.unread = true, nil // nothing was accepted before
	hear(201, 200, "e")
	all.set(repository, []string{id(0), id(100), id(200)})
	if n := below(); n != 14 || len(all.threads.unread) > 0 {
		t.Errorf("%d are asked about where all were heard, and below %d root events is read", n, len(all.threads.unread))
	}
	for n := 300; n <= 300+manyHeard; n++ {
		all.lists[x].ids = append(all.lists[x].ids, id(n))
		all.threads.root(id(n), repository)
		hear(1000+n, n, "e")
	}
	if n := below(); n != 14 {
		t.Errorf("%d are asked about while many come", n)
	}
	if n := below(); n != 15+manyHeard {
		t.Errorf("%d are asked about when no more come", n)
	}
	for n := range mostEarly + 1 {
		hear(100_000+n, 200_000+n, "e")
	}
	all.threads.unread = nil // what was forgotten names an event that comes later: below that is read
	hear(200_000, 100, "e")
	if all.threads.root(id(200_001), repository); !slices.Equal(all.threads.unread, []string{id(200_000), id(200_001)}) {
		t.Errorf("too many were heard early, and below %q is read", all.threads.unread)
	}
	all.threads.forgot = false
	all.threads.whole = true // all was heard of what comes now
	all.threads.root(id(400_000), repository)
	hear(400_001, 400_000, "e")
	all.lists = map[string]*list{}
	if all.threads.forget(all.lists); len(all.threads.places) != 0 {
		t.Errorf("%d places are kept of what is gone", len(all.threads.places))
	}
	all.threads.unread = nil
	if all.threads.root(id(400_000), repository); len(all.threads.unread) != 1 {
		t.Errorf("below %d root events is read that have come back", len(all.threads.unread))
	}
}
