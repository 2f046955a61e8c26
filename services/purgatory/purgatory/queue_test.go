package purgatory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
)

func placeOf(owner, identifier string) repository.Place {
	return repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: identifier}}
}

// TestQueue: a repository comes when its time has come, once however often it was added, each
// identifier to one worker at a time, and again if it was added while it was worked on. What is
// idle comes when nothing else is due; what was dropped does not come.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, began := newQueue(), time.Now()
		var mu sync.Mutex
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		var workers sync.WaitGroup
		run := func() {
			for {
				work, ok := q.next(ctx)
				if !ok {
					return
				}
				var places []string
				for place, wide := range work.places {
					places = append(places, fmt.Sprint(place.PubKey, wide))
				}
				slices.Sort(places)
				mu.Lock()
				got = append(got, fmt.Sprint(work.identifier, " ", strings.Join(places, ","), " ", time.Since(began)))
				mu.Unlock()
				time.Sleep(time.Second)
				q.done(work.identifier)
			}
		}
		for range 3 {
			q.add(placeOf("a", "x"), began)
			q.addOnly(placeOf("b", "x"), began)
		}
		q.add(placeOf("a", "x"), began.Add(time.Minute)) // the earlier time counts
		q.addOnly(placeOf("c", "x"), began.Add(time.Minute))
		q.add(placeOf("a", "y"), began.Add(10*time.Second))
		q.add(placeOf("a", "y"), began.Add(5*time.Second))
		q.add(placeOf("a", "z"), began.Add(time.Hour))
		q.drop(func(identifier string) bool { return identifier == "z" })
		for range 3 {
			workers.Go(run)
		}
		time.Sleep(500 * time.Millisecond)
		q.add(placeOf("a", "x"), time.Now()) // while it is worked on
		q.addIdle([]repository.Place{placeOf("d", "w")})
		time.Sleep(2 * time.Hour)
		cancel()
		workers.Wait()
		want := []string{"x atrue,bfalse 0s", "w dtrue 500ms", "x atrue 1s", "y atrue 5s", "x cfalse 1m0s"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if len(q.items) != 0 {
			t.Errorf("%d items are left", len(q.items))
		}
	})
}

// TestOwedPullRequests are kept until they are named, or given up.
func TestOwedPullRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		take := func() (owed []string) {
			q.add(placeOf("a", "x"), time.Now())
			work, _ := q.next(t.Context())
			q.done("x")
			return work.owed
		}
		q.owe("x", []string{"1", "2"}, time.Hour)
		time.Sleep(30 * time.Minute)
		q.owe("x", []string{"2", "3"}, time.Hour)
		if got := take(); !slices.Equal(got, []string{"2", "3"}) {
			t.Errorf("owed are %v", got)
		}
		time.Sleep(40 * time.Minute)
		q.owe("x", []string{"2", "3"}, time.Hour)
		if got := take(); !slices.Equal(got, []string{"3"}) {
			t.Errorf("after more than an hour %v are owed", got)
		}
		q.owe("x", nil, time.Hour)
		if take(); len(q.items) != 0 {
			t.Errorf("%d items are left", len(q.items))
		}
	})
}
