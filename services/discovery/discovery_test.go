package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

var (
	quiet            = slog.New(slog.DiscardHandler)
	must, eventually = fixture.Must, fixture.Await
)

func openBus(t testing.TB) *bus.Bus {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing, Name: t.Name()})
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

// replica makes one that does not run yet.
func replica(b *bus.Bus, bootstrap ...nostr.RelayURL) *discovery {
	d := newDiscovery(b, config.Rules{Home: domain}, bootstrap, false, prometheus.NewRegistry(), quiet)
	d.window = 10 * time.Millisecond
	return d
}

// run runs a part of a replica until it is ended; the end of the test ends it too.
func run(t testing.TB, part func(context.Context) error) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

func start(t testing.TB, b *bus.Bus, bootstrap ...nostr.RelayURL) (*discovery, func()) {
	t.Helper()
	d := replica(b, bootstrap...)
	end := run(t, d.run)
	eventually(t, "it is ready", func() bool { return d.ready() == nil })
	return d, end
}

// accept appends events to the log, as ingest does.
func accept(t testing.TB, b *bus.Bus, events ...*nostr.Event) {
	t.Helper()
	for _, ev := range events {
		_, err := b.JS.Publish(t.Context(), proto.EventSubjectOf(ev).String(), []byte(ev.String()))
		must(t, err)
	}
}

// hold writes an entry of purgatory; release takes it away.
func hold(t testing.TB, b *bus.Bus, ev *nostr.Event) (release func()) {
	t.Helper()
	kv, err := b.Bucket(t.Context(), proto.BucketHeld)
	must(t, err)
	e := entry(t, ev, "", 1)
	value, err := e.Encode()
	must(t, err)
	_, err = kv.Put(t.Context(), e.Key, value)
	must(t, err)
	return func() { must(t, kv.Delete(t.Context(), e.Key)) }
}

// published reads the targets that the stream has, as lines, and its last sequence.
func published(t testing.TB, b *bus.Bus) (_ []string, last uint64) {
	t.Helper()
	all, repos := map[string]proto.Target{}, map[string]map[string]proto.Wanted{}
	must(t, bus.Read(t.Context(), b.JS, bus.Reading{Stream: proto.StreamTargets}, func(m bus.Message) {
		if last = m.Seq; len(m.Data) == 0 {
			return
		}
		var said proto.Target
		var w proto.Wanted
		if key, ref, err := proto.ParseWantedSubject(m.Subject); err == nil {
			must(t, json.Unmarshal(m.Data, &w))
			if repos[key] == nil {
				repos[key] = map[string]proto.Wanted{}
			}
			repos[key][ref] = w
			return
		}
		key, err := proto.ParseTargetSubject(m.Subject)
		must(t, errors.Join(err, json.Unmarshal(m.Data, &said)))
		all[key] = said
	}))
	for key, wanted := range repos {
		one, is := all[key]
		if one.Repos = wanted; !is {
			t.Errorf("something is wanted of %s, which is no target", key)
		}
		all[key] = one
	}
	return lines(all), last
}

func becomes(t testing.TB, b *bus.Bus, want ...string) {
	t.Helper()
	var got []string
	defer func() {
		if t.Failed() {
			t.Logf("targets are\n\t%q\nwant\n\t%q", got, want)
		}
	}()
	eventually(t, "the targets", func() bool {
		got, _ = published(t, b)
		return slices.Equal(got, want)
	})
}

// TestStory follows a repository from purgatory to its end.
func TestStory(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	start(t, b, "wss://boot.example", "wss://"+domain)
	becomes(t, b, "boot.example")
	first := announce(alice, "x", 1, "wss://r.example", "wss://"+domain)
	release := hold(t, b, first)
	becomes(t, b, "boot.example", "r.example a1:x state")
	accept(t, b, first)
	release()
	becomes(t, b, "boot.example", "r.example a1:x full")
	accept(t, b, announce(alice, "x", 2, "wss://s.example", bob))
	becomes(t, b, "boot.example", "s.example a1:x full", "s.example b0:x full")
	accept(t, b, elsewhere(alice, "x", 3, "wss://s.example"))
	becomes(t, b, "boot.example")
	accept(t, b, announce(alice, "y", 4, "wss://boot.example"))
	becomes(t, b, "boot.example a1:y full")
	accept(t, b, deletion(alice, 9, "a", ref(alice, "y")))
	becomes(t, b, "boot.example")
	must(t, bus.Read(t.Context(), b.JS, bus.Reading{Stream: proto.StreamTargets}, func(m bus.Message) {
		if len(m.Data) == 0 && m.Header.Get(jetstream.MsgTTLHeader) == "" {
			t.Errorf("%s stays for ever", m.Subject)
		}
	}))
	// What was withdrawn, and whose message is gone from the stream by now, can be published again.
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	must(t, err)
	subject, err := proto.WantedSubject("boot.example", ref(alice, "y"))
	must(t, err)
	must(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)))
	accept(t, b, announce(alice, "y", 10, "wss://boot.example"))
	becomes(t, b, "boot.example a1:y full")
}

// TestARestartPublishesNothing, and what happens next is only the difference.
func TestARestartPublishesNothing(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	_, end := start(t, b)
	hold(t, b, announce(alice, "held", 1, "wss://r.example"))
	accept(t, b, announce(alice, "x", 1, "wss://r.example", "ws://s.example:8080"))
	want := []string{"r.example a1:held state", "r.example a1:x full", "s.example:8080 a1:x full"}
	becomes(t, b, want...)
	end()
	_, before := published(t, b)
	start(t, b)
	if got, after := published(t, b); !slices.Equal(got, want) || after != before {
		t.Fatalf("the restart moved the targets from %d to %d: %q", before, after, got)
	}
	accept(t, b, announce(alice, "y", 1, "wss://r.example"))
	becomes(t, b, append(want[:2:2], "r.example a1:y full", want[2])...)
	if _, last := published(t, b); last != before+1 {
		t.Fatalf("one new repository took %d messages", last-before)
	}
}

// TestReplicasPublishEachChangeOnce: several replicas agree, and none reverts what another one
// knows already.
func TestReplicasPublishEachChangeOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	for range 3 {
		start(t, b)
	}
	const rounds = 20
	var want []string
	for n := range rounds {
		accept(t, b, announce(alice, fmt.Sprintf("p%02d", n), 1, "wss://r.example"))
		want = append(want, fmt.Sprintf("r.example a1:p%02d full", n))
		becomes(t, b, want...)
	}
	accept(t, b, announce(alice, "last", 1, "wss://last.example"))
	becomes(t, b, append([]string{"last.example a1:last full"}, want...)...)
	if _, last := published(t, b); last != rounds+3 { // two are relays, which are written once
		t.Errorf("%d changes took %d messages", rounds+3, last)
	}
}

// TestAReleaseLeavesNoGap: an announcement goes to the log and then from purgatory, and in between
// nothing is withdrawn, whichever of the two is read first.
func TestAReleaseLeavesNoGap(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	d := replica(b)
	d.window = time.Millisecond
	run(t, d.run)
	var empty []string
	run(t, func(ctx context.Context) error {
		return bus.NewFollower(b.JS, bus.Reading{Stream: proto.StreamTargets}, quiet, bus.Each(func(m bus.Message) {
			if len(m.Data) == 0 {
				empty = append(empty, m.Subject)
			}
		})).Run(ctx)
	})
	var want []string
	for n := range 100 {
		ev := announce(alice, fmt.Sprintf("p%02d", n), 1, fmt.Sprintf("wss://r%02d.example", n))
		release := hold(t, b, ev)
		accept(t, b, ev, fixture.Unsigned(bob).At(nostr.Timestamp(n+1)).Sign(1, ""))
		release()
		want = append(want, fmt.Sprintf("r%02d.example a1:p%02d full", n, n))
	}
	becomes(t, b, want...)
	if len(empty) > 0 {
		t.Errorf("withdrawn in between: %q", empty)
	}
}

// TestABusThatNeverDelivers: where what the stream has does not arrive, a publication comes to its
// end all the same, and /readyz reports it until it arrives.
func TestABusThatNeverDelivers(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	d := replica(b)
	d.timeout = 200 * time.Millisecond
	end := run(t, d.follow)
	run(t, d.publishChanges)
	eventually(t, "it is ready", func() bool { return d.ready() == nil })
	for _, happens := range []func(){
		func() { hold(t, b, announce(alice, "x", 1, "wss://r.example")) }, func() { accept(t, b, announce(alice, "y", 1, "wss://r.example")) },
	} {
		end()
		happens()
		d.signal()
		eventually(t, "it is reported", func() bool { err := d.ready(); return err != nil && strings.Contains(err.Error(), "in a row") })
		end = run(t, d.follow)
		eventually(t, "that is over", func() bool { return d.ready() == nil })
	}
	becomes(t, b, "r.example a1:x state", "r.example a1:y full")
}
