package history_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
)

var errNone = errors.New("no verdict")

func event(id string) *nostr.Event { return &nostr.Event{ID: id, Sig: "right"} }

// TestAnotherSignatureIsAnotherThing: what comes with a wrong signature does not hide the same
// event with the right one.
func TestAnotherSignatureIsAnotherThing(t *testing.T) {
	t.Parallel()
	l := history.NewInflight()
	var a history.Account
	forged := &nostr.Event{ID: "1", Sig: "wrong"}
	if !l.Depart(forged, &a) || !l.Depart(event("1"), &a) {
		t.Error("the good one does not depart")
	}
	l.Arrive(forged, nil)
	if settled, _ := l.Settled(&a); settled {
		t.Error("settled with the good one on its way")
	}
	l.Arrive(event("1"), nil)
	if settled, lost := l.Settled(&a); !settled || lost {
		t.Errorf("settled %v, lost %v", settled, lost)
	}
}

// TestNothingIsKeptOfWhatIsOver: a connection on which much of the past came at once takes no room
// for that when it has its verdicts. It measures the heap, so it runs alone.
func TestNothingIsKeptOfWhatIsOver(t *testing.T) {
	const ledgers, events = 20, 5000
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	all := make([]*history.Inflight, ledgers)
	for i := range all {
		all[i] = history.NewInflight()
		var a history.Account
		for n := range events {
			all[i].Depart(event(fmt.Sprint(n)), &a)
		}
		for n := range events {
			all[i].Arrive(event(fmt.Sprint(n)), nil)
		}
	}
	if kept := heap() - before; kept > ledgers*events*10 {
		t.Errorf("%d ledgers keep %d bytes of %d events each that have their verdicts", ledgers, kept, events)
	}
	runtime.KeepAlive(all)
}

// TestAccounts: a batch is settled when all that came with it has its verdict, and is told once of
// one that was lost.
func TestAccounts(t *testing.T) {
	t.Parallel()
	l := history.NewInflight()
	var a, b history.Account
	if !l.Depart(event("1"), &a) || l.Depart(event("1"), &b) || !l.Depart(event("2"), &a) {
		t.Error("an event is on its way once")
	}
	l.Arrive(event("1"), errNone)
	if settled, _ := l.Settled(&a); settled {
		t.Error("settled with an event on its way")
	}
	if settled, lost := l.Settled(&b); !settled || !lost {
		t.Error("what came twice is lost to both")
	}
	l.Arrive(event("2"), nil)
	<-l.Changed
	if settled, lost := l.Settled(&a); !settled || !lost {
		t.Error("not settled, or not lost")
	}
	if _, lost := l.Settled(&a); lost {
		t.Error("what was lost is told twice")
	}
	if !l.Depart(event("1"), &a) {
		t.Error("what has arrived is still on its way")
	}
	if !l.Missing().IsZero() {
		t.Error("nothing came live")
	}
}

// TestUnjudged: live events that were lost are told by subscription, with when the first of them
// came.
func TestUnjudged(t *testing.T) {
	t.Parallel()
	l := history.NewInflight()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	one, other := []nostr.Filter{{Kinds: []int{1}}}, []nostr.Filter{{Kinds: []int{2}}, {Kinds: []int{3}}}
	var a history.Account
	l.DepartLive(event("1"), one, noon.Add(2*time.Minute))
	l.DepartLive(event("2"), one, noon.Add(time.Minute))
	l.DepartLive(event("3"), one, noon)
	l.DepartLive(event("4"), other, noon.Add(3*time.Minute))
	l.Depart(event("5"), &a)
	if l.DepartLive(event("5"), other, noon.Add(4*time.Minute)) {
		t.Error("an event of the past is on its way, and comes live as well")
	}
	l.Arrive(event("3"), nil)
	for _, id := range []string{"1", "2", "4", "5"} {
		l.Arrive(event(id), errNone)
	}
	if !l.Missing().Equal(noon.Add(time.Minute)) {
		t.Errorf("missing since %v", l.Missing())
	}
	since := map[int]time.Time{}
	for _, u := range l.TakeUnjudged() {
		since[len(u.Filters)] = u.Since
	}
	if len(since) != 2 || !since[1].Equal(noon.Add(time.Minute)) || !since[2].Equal(noon.Add(3*time.Minute)) {
		t.Errorf("taken %v", since)
	}
	if !l.Missing().IsZero() || len(l.TakeUnjudged()) != 0 {
		t.Error("what was taken is still there")
	}
}
