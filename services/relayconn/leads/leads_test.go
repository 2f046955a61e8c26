package leads_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tendril.dev/services/relayconn/leads"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return began.Add(d) }

// takes checks what of three items a connection is given.
func takes(t *testing.T, b *leads.Board, now time.Time, mine, rest []string) *leads.Lead {
	t.Helper()
	items := []string{"a", "b", "c"}
	got, left, lead := b.Take(items, now)
	if !slices.Equal(got, mine) || !slices.Equal(left, rest) || (lead == nil) != (mine == nil) {
		t.Fatalf("after %v it leads for %v and leaves %v, want %v and %v", now.Sub(began), got, left, mine, rest)
	}
	if !slices.Equal(items, []string{"a", "b", "c"}) {
		t.Fatalf("the items are %v now", items)
	}
	return lead
}

var all = []string{"a", "b", "c"}

// TestTake: what one connection asks for is left to it by the others, and by all of them when it
// has come.
func TestTake(t *testing.T) {
	t.Parallel()
	b := leads.New()
	_, _, first := b.Take([]string{"b"}, began)
	second := takes(t, b, began, []string{"a", "c"}, []string{"b"})
	takes(t, b, began, nil, all)
	first.End(true, true, after(time.Second))
	second.End(true, true, after(time.Second))
	takes(t, b, after(time.Hour), nil, all)
	if mine, rest, _ := b.Take([]string{"d"}, after(time.Hour)); len(mine) != 1 || rest != nil {
		t.Errorf("leads for %v, leaves %v", mine, rest)
	}
}

// TestFailed: what did not come whole, by whichever part, is asked for by another.
func TestFailed(t *testing.T) {
	t.Parallel()
	b := leads.New()
	lead := takes(t, b, began, all, nil)
	lead.Part(1)
	lead.End(false, true, began)
	takes(t, b, began, nil, all) // the other part may bring some of it
	lead.End(true, true, began)
	takes(t, b, began, all, nil)
}

// TestLost: a connection that does not get on, or takes for ever, leads no more, and whoever waits
// for it goes on.
func TestLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heard  []time.Duration // answers that ended
		unread time.Duration   // in which we read nothing
		lost   time.Duration
	}{
		"silent":     {lost: 15 * time.Second},
		"getting on": {heard: []time.Duration{10 * time.Second, 20 * time.Second}, lost: 35 * time.Second},
		"getting on for ever": {heard: []time.Duration{
			10 * time.Second, 20 * time.Second, 30 * time.Second, 40 * time.Second, 50 * time.Second, 59 * time.Second,
		}, lost: time.Minute},
		"not heard": {unread: time.Hour, lost: time.Hour + 15*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := leads.New()
			lead := takes(t, b, began, all, nil)
			for _, at := range c.heard {
				lead.Heard(after(at))
			}
			lead.Unread(c.unread)
			if at, by := b.Blocked([]string{"x", "b"}, after(c.lost-1)); at != 1 || by != lead || by.Over(after(c.lost-1)) {
				t.Errorf("before it is lost, item %d is not asked for", at)
			}
			if at, by := b.Blocked(all, after(c.lost)); at != len(all) || by != nil || !lead.Over(after(c.lost)) {
				t.Errorf("item %d is asked for when it is lost", at)
			}
			next := takes(t, b, after(c.lost), all, nil)
			lead.End(false, true, after(c.lost)) // too late
			takes(t, b, after(c.lost), nil, all)
			next.End(true, true, after(c.lost))
			takes(t, b, after(c.lost+time.Minute), nil, all)
		})
	}
}

// TestBlocked: an item is waited for until what came has been decided.
func TestBlocked(t *testing.T) {
	t.Parallel()
	b := leads.New()
	lead := takes(t, b, began, all, nil)
	lead.End(true, true, began)
	if at, by := b.Blocked([]string{"x", "c"}, after(500*time.Millisecond)); at != 1 || by != lead {
		t.Errorf("item %d is not waited for", at)
	}
	if _, by := b.Blocked([]string{"x", "c"}, after(time.Second)); by != nil {
		t.Error("it is waited for longer")
	}
	_, _, empty := b.Take([]string{"d"}, began)
	empty.End(true, false, began)
	if _, by := b.Blocked([]string{"d"}, began); by != nil {
		t.Error("it is waited for though nothing came")
	}
}

// TestQuiet: it is known since when nothing is asked for, though leads end in any way.
func TestQuiet(t *testing.T) {
	t.Parallel()
	b := leads.New()
	if since := b.QuietSince(began); !since.IsZero() {
		t.Errorf("busy at %v before anything", since)
	}
	quiet := func(at, want time.Duration) {
		t.Helper()
		if since := b.QuietSince(after(at)); since.Sub(began) != want {
			t.Errorf("after %v quiet since %v, want %v", at, since.Sub(began), want)
		}
	}
	_, _, one := b.Take([]string{"a"}, began)
	_, _, two := b.Take([]string{"b"}, began)
	_, _, three := b.Take([]string{"c"}, began)
	three.Unread(-time.Minute) // it was lost
	quiet(time.Second, time.Second)
	one.End(true, true, after(2*time.Second))
	two.End(false, true, after(3*time.Second))
	quiet(4*time.Second, 4*time.Second)
	quiet(time.Minute, 4*time.Second) // the lost one has been swept out
	three.End(true, true, after(2*time.Minute))
	quiet(3*time.Minute, 2*time.Minute)
}

// TestShrinks: nothing is kept of leads that are over.
func TestShrinks(t *testing.T) {
	t.Parallel()
	b := leads.New()
	for n := range 100 {
		now := after(time.Duration(n) * time.Minute)
		if held := b.Held(now); held > 100 {
			t.Fatalf("%d items are kept after %d minutes", held, n)
		}
		var items []string
		for i := range 100 {
			items = append(items, fmt.Sprint(n, "/", i))
		}
		_, _, lead := b.Take(items, now)
		if n%2 == 0 {
			lead.End(true, true, now)
		}
	}
}

// TestTogether: each item is led for by one of many connections that ask at once.
func TestTogether(t *testing.T) {
	t.Parallel()
	b := leads.New()
	var items []string
	for i := range 1000 {
		items = append(items, fmt.Sprint(i))
	}
	var mu sync.Mutex
	led := map[string]int{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for chunk := range slices.Chunk(items, 30) {
				mine, _, lead := b.Take(chunk, began)
				mu.Lock()
				for _, item := range mine {
					led[item]++
				}
				mu.Unlock()
				if lead != nil {
					lead.Heard(began)
					lead.End(true, true, began)
				}
				b.Blocked(chunk, began)
				b.QuietSince(began)
			}
		})
	}
	all.Wait()
	for _, item := range items {
		if led[item] != 1 {
			t.Errorf("%d lead for item %s", led[item], item)
		}
	}
}

// TestProbe: while leads go on one connection at a time finds out in one go what its relay has
// beyond them, and none does once that was in vain, until all leads have ended. One that does not
// come to its end keeps nobody waiting for long.
func TestProbe(t *testing.T) {
	t.Parallel()
	b := leads.New()
	lead := takes(t, b, began, all, nil)
	one := b.Probe(began)
	if one == nil || b.Probe(after(time.Second)) != nil {
		t.Fatal("none may try, or two at once")
	}
	one.End(false)
	two := b.Probe(after(time.Second))
	if two == nil {
		t.Fatal("none may try after one that was worth while")
	}
	late := b.Probe(after(16 * time.Second))
	if late == nil {
		t.Fatal("one that does not end keeps all others waiting")
	}
	two.End(true)
	if late.End(true); b.Probe(after(time.Minute)) != nil {
		t.Error("it is tried again though it was in vain")
	}
	late.End(false)
	lead.End(true, true, after(time.Minute))
	if b.Probe(after(time.Minute)) != nil {
		t.Error("a second end counts")
	}
	b.Take([]string{"d"}, after(2*time.Minute))
	if b.Probe(after(2*time.Minute)) == nil {
		t.Error("what was in vain once is never tried again")
	}
	(*leads.Probe)(nil).End(true)
}

// TestIdle: root events of which others have brought hardly anything new are not asked for, but for
// some, which are the same for all connections; until the others bring something new, or all leads
// have ended.
func TestIdle(t *testing.T) {
	t.Parallel()
	b := leads.New()
	_, _, lead := b.Take([]string{"a"}, began)
	idle := func() (n int) {
		for i := range 800 {
			roots := []string{fmt.Sprint(i), "a"}
			if one := b.Idle(roots, began); one != b.Idle(roots, began) {
				t.Fatal("one connection asks for a group, and the next does not")
			} else if one {
				n++
			}
		}
		return n
	}
	few := func(n int) bool { return n > 600 && n < 780 }
	if b.Brought(999, 0); idle() != 0 {
		t.Error("too little has come to say so")
	}
	if b.Brought(1, 0); !few(idle()) {
		t.Errorf("%d of 800 groups are not asked for, want seven of eight", idle())
	}
	if b.Brought(500, 300); idle() != 0 {
		t.Error("a fifth was new")
	}
	for range 3 {
		b.Brought(1000, 0)
	}
	if !few(idle()) {
		t.Error("what was new some time ago counts still")
	}
	lead.End(true, true, began)
	if _, _, next := b.Take([]string{"b"}, began); idle() != 0 || next == nil {
		t.Error("what others brought before counts still")
	}
}

// TestTally: a tenth that is new stays a tenth, however much comes at once and for however long.
func TestTally(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		came, fresh int
		idle        bool
	}{
		"a tenth":                 {1000, 100, true},
		"a tenth, in small parts": {10, 1, true},
		"a tenth, in large parts": {50_000, 5000, true},
		"a sixth":                 {600, 100, false},
		"a sixth, in large parts": {60_000, 10_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := leads.New()
			takes(t, b, began, all, nil)
			for range 300_000 / c.came {
				b.Brought(c.came, c.fresh)
			}
			if got := idles(b, began); got != c.idle {
				t.Errorf("not asked for: %v, want %v", got, c.idle)
			}
			b.Brought(1000, 1000)
			b.Brought(1000, 1000)
			if idles(b, began) {
				t.Error("what came long ago counts more than what comes now")
			}
		})
	}
}

// idles is whether some groups of root events are not asked for.
func idles(b *leads.Board, now time.Time) bool {
	for i := range 100 {
		if b.Idle([]string{fmt.Sprint(i)}, now) {
			return true
		}
	}
	return false
}

// TestIdleQuiet: what was counted says nothing when no lead has gone on for a while, whether it
// came to its end or was lost.
func TestIdleQuiet(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"ended": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			b := leads.New()
			lead := takes(t, b, began, all, nil)
			b.Brought(1000, 0)
			if ends {
				lead.End(true, true, after(time.Second))
			}
			if !idles(b, after(5*time.Second)) {
				t.Error("all are asked for at once when a lead has come to its end")
			}
			if idles(b, after(time.Minute)) {
				t.Error("some are put off though nobody has asked for anything for a minute")
			}
		})
	}
}
