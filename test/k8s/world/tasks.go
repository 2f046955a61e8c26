package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// task is something that goes on for a while and says what it does. It stands in for the test that
// package world wants: what is fatal ends it.
type task struct {
	testing.TB // nil: nothing else of it is called
	ctx        context.Context
	ends       func() // after a fatal error; nil: the goroutine ends

	mu       sync.Mutex
	out      http.ResponseWriter // nil: standard error
	failed   bool
	cleanups []func()
}

func (t *task) Helper() {}

func (t *task) Context() context.Context {
	if t.ctx == nil {
		return context.Background()
	}
	return t.ctx
}

func (t *task) Failed() bool { return t.failed }

func (t *task) Cleanup(do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, do)
}

func (t *task) TempDir() string {
	dir, err := os.MkdirTemp("", "world-")
	fixture.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Logf tells the person who watches a line.
func (t *task) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	if t.out == nil {
		fmt.Fprintln(os.Stderr, line)
		return
	}
	fmt.Fprintln(t.out, line)
	http.NewResponseController(t.out).Flush()
}

func (t *task) Errorf(format string, args ...any) {
	t.Logf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
}

func (t *task) Error(args ...any) { t.Errorf("%s", fmt.Sprint(args...)) }
func (t *task) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

func (t *task) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	if t.ends != nil {
		t.ends()
	}
	runtime.Goexit()
}

// run does a task, and answers with what it says, line by line as it comes. The last line is
// [world.Done] if it has not failed:
//
//	story              the end-to-end story
//	stock?events=n     puts n events of the past on the relays, all at once
//	flow?events=n&rate=r  publishes n events on the relays, r a second
//	served             waits until everything that was published or acknowledged is served
//	load               users at work, until it is ended
func (w *World) run(rw http.ResponseWriter, r *http.Request) {
	number := func(name string) int { n, _ := strconv.Atoi(r.URL.Query().Get(name)); return n }
	do, known := map[string]func(t testing.TB){
		"story":  w.story,
		"stock":  func(t testing.TB) { w.publish(t, number("events"), 0) },
		"flow":   func(t testing.TB) { w.publish(t, number("events"), number("rate")) },
		"served": w.served,
		"load":   w.load,
	}[r.PathValue("name")]
	if !known {
		http.NotFound(rw, r)
		return
	}
	t := &task{ctx: r.Context(), out: rw}
	http.NewResponseController(rw).Flush() // it has begun
	var running sync.WaitGroup
	running.Go(func() { do(t) })
	running.Wait()
	for _, cleanup := range slices.Backward(t.cleanups) {
		cleanup()
	}
	if !t.failed {
		t.Logf(world.Done)
	}
}

// story: a user announces a repository that lists all relays, which the Tendril knows by that, and
// pushes it. Then come all stories that need no operator.
func (w *World) story(t testing.TB) {
	w.shared = w.door.Host("shared", world.Hosting{Owner: w.owner, Relays: w.urls()})
	world.CloneIs(t, w.shared.At(w.door), w.shared.Pushed)
	t.Logf("user: announced with %d relays, and pushed; a clone is whole", len(w.relays))
	place := world.Place{Door: w.door, Other: w.door, Git: w.git, First: w.relays[0], Second: w.relays[1%len(w.relays)]}
	for _, story := range world.Stories {
		began := time.Now()
		story.Tell(place.In(t))
		t.Logf("%s (%v)", story.Name, time.Since(began).Round(time.Second))
	}
}

func (w *World) urls() (urls []string) {
	for _, r := range w.relays {
		urls = append(urls, r.URL)
	}
	return urls
}

// publish publishes events about the users' repository on the relays, so many a second; at a rate
// of 0 all at once, with times in the past.
func (w *World) publish(t testing.TB, events, rate int) {
	address := w.owner.Address("shared")
	began, now := time.Now(), nostr.Now()
	for n := range events {
		at := now - nostr.Timestamp(1+(events-n)/len(w.relays))
		if rate > 0 {
			time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
			at = nostr.Now()
		}
		ev := w.guest.At(at).Sign(gonostr.KindComment, "comment "+strconv.Itoa(n), nostr.Tag{"A", address}, nostr.Tag{"K", "30617"}, nostr.Tag{"P", w.owner.PubKey}, nostr.Tag{"a", address}, nostr.Tag{"k", "30617"}, nostr.Tag{"p", w.owner.PubKey})
		if n%200 == 0 {
			ev = w.guest.At(at).Sign(1621, "issue "+strconv.Itoa(n), nostr.Tag{"a", address})
		}
		w.relays[n%len(w.relays)].Publish(ev)
		w.mu.Lock()
		w.published = append(w.published, ev.ID)
		w.mu.Unlock()
	}
	t.Logf("published %d events on %d relays in %v", events, len(w.relays), time.Since(began).Round(time.Second))
}

// load lets users work until the task is ended.
func (w *World) load(t testing.TB) {
	if w.users == nil {
		w.users = world.NewUsers(w.t, w.shared, world.Hosting{})
	}
	stop, meter := make(chan struct{}), &world.Meter{}
	w.mu.Lock()
	w.stop, w.meter = stop, meter
	w.mu.Unlock()
	if err := w.users.Run(t, meter, time.Second, stop); err != nil {
		t.Error(err)
	}
	for _, line := range world.Lines(meter.Tallies()) {
		t.Logf("%s", line)
	}
}

// served waits until everything that lies on the relays, and everything that users were told is
// accepted, is served. It ends with an error when nothing more has come for three minutes.
func (w *World) served(t testing.TB) {
	const patience = 3 * time.Minute
	w.mu.Lock()
	want := slices.Clone(w.published)
	w.mu.Unlock()
	if w.users != nil {
		want = append(want, w.users.Acked()...)
	}
	missing, progress := want, time.Now()
	for len(missing) > 0 {
		left, err := w.notServed(t, missing)
		if err == nil && len(left) < len(missing) {
			progress = time.Now()
		}
		if err == nil {
			missing = left
		}
		if len(missing) > 0 && time.Since(progress) > patience {
			t.Fatalf("of %d events %d are not served, and nothing more has come for %v: the first is %s (%v)", len(want), len(missing), patience, missing[0], err)
		}
		time.Sleep(time.Second)
	}
	t.Logf("%d of %d events are served", len(want), len(want))
	if w.users != nil {
		w.users.CheckPushes(t)
	}
}

// notServed returns those of the events that the front door does not serve.
func (w *World) notServed(t testing.TB, ids []string) (missing []string, err error) {
	s, err := world.TryDial(t, w.door.Relay())
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for some := range slices.Chunk(ids, 500) {
		events, err := s.Query(nostr.Filter{IDs: some, Limit: len(some)})
		if err != nil {
			return nil, err
		}
		for _, id := range some {
			if !slices.ContainsFunc(events, func(ev *nostr.Event) bool { return ev.ID == id }) {
				missing = append(missing, id)
			}
		}
	}
	return missing, nil
}
