package purgatory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueue: a repository comes when its time has come, once however often it was added, each
// identifier to one worker at a time, and again if it was added while it was worked on. What is
// idle comes when nothing else is due; what was dropped does not come.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var q *queue
		began := time.Now()
		var got []string
		q = newQueue(3, func(_ context.Context, work task) {
			var places []string
			for place, reach := range work.places {
				places = append(places, fmt.Sprint(place.PubKey, reach))
			}
			slices.Sort(places)
			q.mu.Lock()
			got = append(got, fmt.Sprint(work.identifier, " ", strings.Join(places, ","), " ", time.Since(began)))
			q.mu.Unlock()
			time.Sleep(time.Second)
		})
		for range 3 {
			q.add(placeOf("a", "x"), began, group)
			q.add(placeOf("b", "x"), began, alone)
		}
		q.add(placeOf("a", "x"), began.Add(time.Minute), group) // the earlier time counts
		q.add(placeOf("c", "x"), began.Add(time.Minute), alone)
		q.add(placeOf("a", "y"), began.Add(10*time.Second), group)
		q.add(placeOf("a", "y"), began.Add(5*time.Second), group)
		q.add(placeOf("a", "z"), began.Add(time.Hour), group)
		q.drop(func(identifier string) bool { return identifier == "z" })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- q.run(ctx) }()
		time.Sleep(500 * time.Millisecond)
		q.add(placeOf("a", "x"), time.Now(), group) // while it is worked on
		q.idle <- placeOf("d", "w")
		time.Sleep(2 * time.Hour)
		cancel()
		<-ended
		want := []string{"x a1,b0 0s", "w d2 500ms", "x a1 1s", "y a1 5s", "x c0 1m0s"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if len(q.items) != 0 {
			t.Errorf("%d items are left", len(q.items))
		}
	})
}
