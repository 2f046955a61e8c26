package discovery_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
)

// value is what a metric says, counters and gauges of one series.
func value(t *testing.T, r replica, name string) float64 {
	t.Helper()
	families, err := r.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func deletion(by string, created int, tags ...nostr.Tag) *nostr.Event {
	return finish(&nostr.Event{PubKey: by, Kind: nip34.KindDeletion, CreatedAt: nostr.Timestamp(created), Tags: tags})
}

// TestADeletionCostsWhatItChanges: among ten thousand repositories, deletion requests that name
// nothing of their authors' have nothing read and no window opened, and one of a repository and of
// an issue has two looked up.
func TestADeletionCostsWhatItChanges(t *testing.T) {
	t.Parallel()
	r := run(t, t.TempDir(), "")
	var events []*nostr.Event
	for n := range 10_000 {
		events = append(events, announce(alice, fmt.Sprint("p", n), 1, fmt.Sprintf("wss://r%d.example", n%10)))
	}
	bug := issue(1, "30617:"+alice+":p0")
	accept(t, r.Bus, append(events, bug)...)
	const targets, repositories, reads = "tendril_discovery_targets", "ngit_repositories_total", "tendril_discovery_reads_total"
	// What was accepted together may be published in several windows, the issue after the last
	// repository.
	var head uint64
	eventually(t, "all are published", func() bool {
		if value(t, r, repositories) != 10_000 {
			return false
		}
		lines, last := published(t, r.Bus)
		head = last
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, " p0/full+"+bug.ID[:6]) })
	})
	before := value(t, r, reads)

	nothing := make([]*nostr.Event, 1000)
	for n := range nothing {
		nothing[n] = deletion(bob, n, nostr.Tag{"a", fmt.Sprintf("30617:%s:p%d", alice, n)}, nostr.Tag{"e", events[n].ID}, nostr.Tag{"e", strings.Repeat("0", 64)})
	}
	accept(t, r.Bus, nothing...)
	// The one that comes after them is known of: so were they.
	accept(t, r.Bus, deletion(alice, 9, nostr.Tag{"a", "30617:" + alice + ":p1"}), deletion(bob, 9, nostr.Tag{"e", bug.ID}))
	eventually(t, "it is gone", func() bool { return value(t, r, repositories) == 9_999 })
	eventually(t, "what was deleted is wanted no more", func() bool {
		lines, _ := published(t, r.Bus)
		return !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, " p1/full") || strings.Contains(l, "+") })
	})
	if _, last := published(t, r.Bus); last != head+2 {
		t.Errorf("%d changes were published, want one for each of the two relays", last-head)
	}
	if n := value(t, r, reads) - before; n != 2 {
		t.Errorf("%v reads for a thousand and two deletion requests, want 2", n)
	}
	if value(t, r, targets) != 10 {
		t.Errorf("%v targets", value(t, r, targets))
	}
}

// TestRootEventsBeforeTheirRepository: what named a repository before it was here, and was accepted
// for another, is read when it comes.
func TestRootEventsBeforeTheirRepository(t *testing.T) {
	t.Parallel()
	r := run(t, t.TempDir(), "")
	accept(t, r.Bus, announce(alice, "x", 1, "wss://r.example"))
	becomes(t, r.Bus, "wss://r.example x/full")
	patch := finish(&nostr.Event{PubKey: bob, Kind: nip34.KindPatch, CreatedAt: 2, Tags: nostr.Tags{{"a", "30617:" + alice + ":x"}, {"a", "30617:" + alice + ":y"}}})
	const reads = "tendril_discovery_reads_total"
	before := value(t, r, reads)
	accept(t, r.Bus, patch)
	short := "+" + patch.ID[:6]
	becomes(t, r.Bus, "wss://r.example x/full"+short)
	if n := value(t, r, reads) - before; n != 0 {
		t.Errorf("%v reads for what was heard of", n)
	}
	accept(t, r.Bus, announce(alice, "y", 3, "wss://s.example"))
	becomes(t, r.Bus, "wss://r.example x/full"+short, "wss://s.example y/full"+short)
}

// TestManyMaintainersStopNobody: held announcements that name hundreds of keys each made one
// message that the bus did not take, and no relay after it got anything.
func TestManyMaintainersStopNobody(t *testing.T) {
	t.Parallel()
	server, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	for n := range 41 {
		tag := nostr.Tag{"maintainers"}
		for m := range 490 {
			tag = append(tag, fmt.Sprintf("%032x%032x", n+1, m))
		}
		ev := announce(fmt.Sprintf("%064x", n+1), fmt.Sprint("x", n), 1, "wss://a.example")
		ev.Tags = append(ev.Tags, tag)
		hold(t, server, finish(ev), proto.PhaseWaiting)
	}
	// All of it is there at the start, so that it is one change.
	r := run(t, t.TempDir(), server.ClientURL())
	accept(t, r.Bus, announce(alice, "user", 1, "wss://b.example"))
	eventually(t, "the user's relay is a target", func() bool {
		lines, _ := published(t, r.Bus)
		return slices.Contains(lines, "wss://b.example user/full")
	})
	eventually(t, "and so is the other", func() bool {
		lines, _ := published(t, r.Bus)
		return len(lines) == 2 && strings.Count(lines[0], "/state") == 41
	})
}

// TestARootEventThatExpired: what a further relay is asked for is looked up, so it is found that a
// root event is accepted no longer. Then no relay is asked for it any more.
func TestARootEventThatExpired(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	r := apart(t, t.TempDir(), server)
	expires := time.Now().Unix() + 5 // it is published by then
	stays, goes := issue(1, "30617:"+alice+":x"), issue(2, "30617:"+alice+":x")
	goes.Tags = append(goes.Tags, nostr.Tag{"expiration", fmt.Sprint(expires)})
	accept(t, r.Bus, announce(alice, "x", 1, "wss://a.example"), stays, finish(goes))
	both := []string{"+" + stays.ID[:6], "+" + goes.ID[:6]}
	slices.Sort(both)
	becomes(t, r.Bus, "wss://a.example x/full"+strings.Join(both, ""))
	eventually(t, "it has expired", func() bool { return time.Now().Unix() > expires })
	accept(t, r.Bus, announce(alice, "x", 2, "wss://a.example", "wss://b.example"))
	becomes(t, r.Bus, "wss://a.example x/full+"+stays.ID[:6], "wss://b.example x/full+"+stays.ID[:6])
}

// TestASnapshotAsksForWhatWasHeardLongAgo: after many changes of a relay one message replaces all,
// with the whole ids of root events that came one by one, were deleted, or were there before the
// replica began, which has no index.
func TestASnapshotAsksForWhatWasHeardLongAgo(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	x := "30617:" + alice + ":x"
	long := []*nostr.Event{issue(1, x), issue(2, x), issue(3, x)}
	accept(t, server.Bus, append(long, announce(alice, "x", 1, "wss://a.example"))...)
	first := apart(t, t.TempDir(), server)
	line := func(events []*nostr.Event) string {
		var ids []string
		for _, ev := range events {
			ids = append(ids, "+"+ev.ID[:6])
		}
		slices.Sort(ids)
		return "wss://a.example x/full" + strings.Join(ids, "")
	}
	becomes(t, server.Bus, line(long))
	r, want := first, long
	subject, err := proto.TargetSubject("a.example")
	if err != nil {
		t.Fatal(err)
	}
	for n := 4; ; n++ {
		switch {
		case n == 30: // another one, which has not heard of them
			r.stop()
			r = apart(t, t.TempDir(), server)
		case n%10 == 0:
			accept(t, server.Bus, deletion(bob, 9, nostr.Tag{"e", want[0].ID}))
			want = want[1:]
		default:
			more := issue(n, x)
			accept(t, server.Bus, more)
			want = append(slices.Clone(want), more)
		}
		becomes(t, server.Bus, line(want))
		stream, err := server.Bus.JS.Stream(t.Context(), proto.StreamTargets)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := stream.GetLastMsgForSubject(t.Context(), subject)
		if err != nil {
			t.Fatal(err)
		}
		var c proto.TargetChange
		if err := json.Unmarshal(msg.Data, &c); err != nil {
			t.Fatal(err)
		}
		if !c.Snapshot || n < 10 {
			if n > 100 {
				t.Fatal("there was no snapshot")
			}
			continue
		}
		ids := make([]string, len(want))
		for i, ev := range want {
			ids[i] = ev.ID
		}
		slices.Sort(ids)
		if len(c.Repos) != 1 || !slices.Equal(c.Repos[0].Roots, ids) {
			t.Errorf("the snapshot says %+v, want %q", c, ids)
		}
		return
	}
}
