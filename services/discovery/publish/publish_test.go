package publish_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/roots"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/publish"
)

const patience = 2 * time.Minute

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// replica is a publisher, and the root events that it may ask for.
type replica struct {
	*publish.Publisher
	index *index
}

// start makes a publisher that has read what there is.
func start(t *testing.T, b *bus.Bus) (p replica, stop func()) { return startThrough(t, b, b.JS) }

// startThrough makes one that uses another way to JetStream.
func startThrough(t *testing.T, b *bus.Bus, js jetstream.JetStream) (p replica, stop func()) {
	t.Helper()
	p.index = &index{}
	p.Publisher = publish.New(b, p.index.roots, slog.New(slog.DiscardHandler))
	p.Through(js)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Follow(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("follow: %v", err)
			}
		case <-time.After(patience):
			t.Error("follow did not end with its context")
		}
	})
	t.Cleanup(stop)
	head, err := b.LastSeq(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	wait, cancelWait := context.WithTimeout(t.Context(), patience)
	defer cancelWait()
	if err := p.WaitFor(wait, head); err != nil {
		t.Fatal(err)
	}
	return p, stop
}

func send(t *testing.T, p replica, wanted map[string]target.Target) int {
	t.Helper()
	n, err := bring(t, p, wanted)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// bring publishes what is accepted then, and again whenever another replica was first.
func bring(t *testing.T, p replica, wanted map[string]target.Target) (sent int, err error) {
	p.index.accept(wanted)
	for {
		n, err := p.Publish(t.Context(), short(wanted), p.Seq())
		if sent += n; !errors.Is(err, publish.ErrOvertaken) {
			return sent, err
		}
	}
}

// folded reads the stream as a relay worker does: from what it holds, to targets. It also gives the
// number of messages there.
func folded(t *testing.T, b *bus.Bus) (map[string]target.Target, int) {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo().State
	at, out, n := map[string]*target.Folded{}, map[string]target.Target{}, 0
	for seq := max(1, info.FirstSeq); seq <= info.LastSeq; seq++ {
		msg, err := stream.GetMsg(t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		if _, err := proto.ParseRootsSubject(msg.Subject); err == nil {
			continue
		}
		key, err := proto.ParseTargetSubject(msg.Subject)
		if err != nil {
			t.Fatal(err)
		}
		var c proto.TargetChange
		if err := json.Unmarshal(msg.Data, &c); err != nil {
			t.Fatal(err)
		}
		if gone := msg.Header.Get(proto.HeaderGone) != ""; gone != c.Gone {
			t.Fatalf("message %d: header says gone %v, payload %v", seq, gone, c.Gone)
		}
		if at[key] == nil {
			at[key] = &target.Folded{}
		}
		at[key].Take(c)
	}
	lists := roots.NewReader(b.JS)
	for key, f := range at {
		if !f.Exists() {
			continue
		}
		found := map[string][]target.ID{}
		for ref, named := range f.Named() {
			list, whole, err := lists.At(t.Context(), ref, named.At)
			if err == nil && !whole {
				list, whole, err = lists.Newest(t.Context(), ref)
			}
			if err != nil || !whole {
				t.Fatalf("%s: the root events of %s at %d: %v, %v", key, ref, named.At, whole, err)
			}
			found[ref] = named.Roots(list)
		}
		out[key] = f.Target().With(found)
	}
	return out, n
}

func same(t *testing.T, b *bus.Bus, want map[string]target.Target) {
	t.Helper()
	if got, _ := folded(t, b); !reflect.DeepEqual(got, want) {
		t.Fatalf("published %+v\nwant %+v", got, want)
	}
}

func ids(from, to int) (list []target.ID) {
	for n := from; n < to; n++ {
		var id target.ID
		binary.BigEndian.PutUint64(id[:], uint64(n))
		list = append(list, id)
	}
	return list
}

// relays makes targets of so many relays with one repository each.
func relays(n int, roots ...target.ID) map[string]target.Target {
	out := map[string]target.Target{}
	for i := range n {
		key := fmt.Sprintf("r%d.example", i)
		out[key] = target.Target{URL: "wss://" + key, Repos: map[string]target.Repo{"30617:aa:x": {Level: proto.LevelFull, Roots: roots}}}
	}
	return out
}

func TestOnlyTheDifferenceIsWritten(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	for _, tc := range []struct {
		name   string
		wanted map[string]target.Target
		sent   int
	}{
		{"at first", relays(3), 3},
		{"the same again", relays(3), 0},
		{"a root event for all", relays(3, ids(0, 1)...), 3},
		{"one relay goes", relays(2, ids(0, 1)...), 1},
		{"the same again, without it", relays(2, ids(0, 1)...), 0},
		{"it comes back", relays(3, ids(0, 1)...), 1},
		{"more ids than a message holds", relays(1, ids(0, 9000)...), 2 + 2},
		{"all go", nil, 1},
	} {
		if n := send(t, p, tc.wanted); n != tc.sent {
			t.Fatalf("%s: %d messages, want %d", tc.name, n, tc.sent)
		}
		want := tc.wanted
		if want == nil {
			want = map[string]target.Target{}
		}
		same(t, b, want)
	}
}

func TestARestartWritesNothing(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, stop := start(t, b)
	send(t, p, relays(5, ids(0, 5000)...))
	stop()
	again, _ := start(t, b)
	if n := send(t, again, relays(5, ids(0, 5000)...)); n != 0 {
		t.Fatalf("%d messages after a restart", n)
	}
	if n := send(t, again, relays(4, ids(0, 5000)...)); n != 1 {
		t.Fatalf("%d messages for a target that goes, want 1", n)
	}
}

func TestASnapshotReplacesManyMessages(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	for n := range 200 {
		send(t, p, relays(1, ids(0, n)...))
	}
	same(t, b, relays(1, ids(0, 199)...))
	if _, n := folded(t, b); n > 64 {
		t.Fatalf("the stream holds %d messages for one relay", n)
	}
	again, _ := start(t, b)
	if n := send(t, again, relays(1, ids(0, 199)...)); n != 0 {
		t.Fatalf("%d messages after reading a snapshot", n)
	}
}

// TestASnapshotSaysSinceWhen the repositories are as they are, by the sequences of the messages
// that it replaces; so does the next one, and one that is written after a restart.
func TestASnapshotSaysSinceWhen(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, stop := start(t, b)
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	// wanted has a repository that never changes, one that changes with n, and one that is new.
	wanted := func(n int) map[string]target.Target {
		all := relays(1, ids(0, n)...)
		repos := all["r0.example"].Repos
		repos["30617:aa:same"] = target.Repo{Level: proto.LevelFull, Roots: ids(0, 3)}
		repos[fmt.Sprintf("30617:aa:new%d", n)] = target.Repo{Level: proto.LevelFull}
		return all
	}
	last := func() uint64 {
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.LastSeq
	}
	send(t, p, wanted(0))
	first := last()
	for n, snapshots := 1, 0; snapshots < 3; n++ {
		if n > 300 {
			t.Fatal("no snapshot")
		}
		send(t, p, wanted(n))
		msg, err := stream.GetMsg(t.Context(), last())
		if err != nil {
			t.Fatal(err)
		}
		var c proto.TargetChange
		if err := json.Unmarshal(msg.Data, &c); err != nil {
			t.Fatal(err)
		}
		since := map[string]uint64{}
		for _, r := range c.Repos {
			since[r.Ref] = r.Since
		}
		if !c.Snapshot {
			if since["30617:aa:x"] != 0 {
				t.Fatalf("a change says since when: %+v", c)
			}
			continue
		}
		snapshots++
		if since["30617:aa:same"] != first || since["30617:aa:x"] != 0 || since[fmt.Sprintf("30617:aa:new%d", n)] != 0 || len(since) != 3 {
			t.Errorf("snapshot %d: %v, want the first repository since %d", snapshots, since, first)
		}
		if snapshots == 2 {
			stop()
			p, stop = start(t, b)
		}
	}
}

// TestReplicasPublishEachChangeOnce: all replicas find the same change at once.
func TestReplicasPublishEachChangeOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	var replicas []replica
	for range 3 {
		p, _ := start(t, b)
		replicas = append(replicas, p)
	}
	for round := 1; round <= 20; round++ {
		wanted := relays(6, ids(0, round)...)
		sent := make([]int, len(replicas))
		var wg sync.WaitGroup
		for i, p := range replicas {
			wg.Go(func() {
				n, err := bring(t, p, wanted)
				if err != nil {
					t.Error(err)
				}
				sent[i] = n
			})
		}
		wg.Wait()
		total := 0
		for _, n := range sent {
			total += n
		}
		if total != 6 {
			t.Fatalf("round %d: %v messages, want 6 in all", round, sent)
		}
		same(t, b, wanted)
	}
}

// TestWhoIsBehindTakesNothingBack: what another replica wrote since what is wanted was worked out
// stays, whether it is already read or not, and the other relays get what they should.
func TestWhoIsBehindTakesNothingBack(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]bool{"it has read what the other wrote": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			p, _ := start(t, b)
			q, stop := start(t, b)
			send(t, p, relays(1, ids(0, 1)...))
			head, err := b.LastSeq(t.Context(), proto.StreamTargets)
			if err != nil {
				t.Fatal(err)
			}
			if err := q.WaitFor(t.Context(), head); err != nil {
				t.Fatal(err)
			}
			asOf := q.Seq()
			if !read {
				stop()
			}
			newer := relays(1, ids(0, 5)...)
			send(t, p, newer)
			if read {
				if err := q.WaitFor(t.Context(), head+1); err != nil {
					t.Fatal(err)
				}
			}
			behind := relays(2, ids(0, 2)...) // it knows of another relay, and of fewer root events of this one
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !read {
				go func() { _ = q.Follow(ctx) }() // it reads on only now, and what it finds is a conflict
			}
			q.index.accept(behind)
			sent, err := q.Publish(t.Context(), short(behind), asOf)
			if !errors.Is(err, publish.ErrOvertaken) || sent != 1 {
				t.Errorf("%d messages, %v; want 1 and ErrOvertaken", sent, err)
			}
			for key := range newer {
				behind[key] = newer[key]
			}
			same(t, b, behind)
		})
	}
}

// TestReplicasThatDisagreedEndAsOne: while each wants something else, each writes that over the
// other; when both want the same, so does the stream.
func TestReplicasThatDisagreedEndAsOne(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	q, _ := start(t, b)
	var wg sync.WaitGroup
	for n := range 30 {
		wg.Go(func() { send(t, p, relays(2, ids(n, n+10)...)) })
		wg.Go(func() { send(t, q, relays(3, ids(n+5, n+7)...)) })
		wg.Wait()
		// The one that was behind comes to want the same.
		want := relays(2, ids(n, n+10)...)
		send(t, p, want)
		send(t, q, want)
		same(t, b, want)
	}
}

func TestARelayWhoseNameDoesNotFitIsPassedOver(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	wanted := relays(2)
	good := relays(2)
	wanted[""] = target.Target{URL: "wss://", Repos: map[string]target.Repo{"30617:bb:y": {Level: proto.LevelFull, Roots: ids(0, 5)}}}
	if n := send(t, p, wanted); n != 2 {
		t.Fatalf("%d messages, want those of the two relays that have names", n)
	}
	same(t, b, good)
	if p.index.asked > 0 {
		t.Errorf("it asked for the root events of %d repositories for a relay that cannot be published", p.index.asked)
	}
}

func TestAMalformedMessageDoesNotStopTheReader(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	subject, err := proto.TargetSubject("r0.example")
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"{", `{"url":5}`, ""} {
		if _, err := b.JS.Publish(t.Context(), subject, []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := start(t, b)
	// What cannot be read was written by nobody of us; it is in the way of the expected sequence,
	// and must not stay there.
	if n := send(t, p, relays(1)); n != 1 {
		t.Fatalf("%d messages, want 1", n)
	}
	if head, err := b.LastSeq(t.Context(), proto.StreamTargets); err != nil || head != 4 {
		t.Fatalf("the stream ends at %d, %v; want 4", head, err)
	}
}

func TestChangesStayBelowTheBusLimit(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	wanted := relays(1, ids(0, 20_000)...)
	for n := range 3000 {
		wanted["r0.example"].Repos[fmt.Sprintf("30617:%064d:%0200d", n, n)] = target.Repo{Level: proto.LevelStateOnly, Authors: slices.Repeat([]string{fmt.Sprintf("%064d", n)}, 1)}
	}
	send(t, p, wanted)
	same(t, b, wanted)
}

// TestALargeTargetIsSplitByBytes: announcements that name many maintainers make a target of more
// than the bus carries in one message, and one repository alone can. It arrives in parts, and
// whoever comes after it gets his.
func TestALargeTargetIsSplitByBytes(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	wanted := relays(3)
	authors := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("%064x", i))
		}
		return list
	}
	for n := range 41 {
		wanted["r0.example"].Repos[fmt.Sprintf("30617:%064x:x", n)] = target.Repo{Level: proto.LevelStateOnly, Authors: authors(500)}
	}
	wanted["r0.example"].Repos["30617:bb:x"] = target.Repo{Level: proto.LevelStateOnly, Authors: authors(30_000)}
	send(t, p, wanted)
	same(t, b, wanted)
	if n := send(t, p, wanted); n != 0 {
		t.Errorf("%d messages for nothing new", n)
	}
	again, _ := start(t, b)
	if n := send(t, again, wanted); n != 0 {
		t.Errorf("%d messages after a restart", n)
	}
}

// TestATargetThatDoesNotFitDelaysNobody: what can never be published is told of once, and all
// others are published, whether they sort before it or after.
func TestATargetThatDoesNotFitDelaysNobody(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	var text bytes.Buffer
	p := replica{index: &index{}}
	p.Publisher = publish.New(b, p.index.roots, slog.New(slog.NewTextHandler(&text, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = p.Follow(ctx) }()
	wanted, good := relays(3), relays(3)
	wanted["r1.example"].Repos["30617:bb:"+strings.Repeat("x", 1<<20)] = target.Repo{Level: proto.LevelFull}
	delete(good, "r1.example")
	for round := range 3 {
		if _, err := bring(t, p, wanted); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		same(t, b, good)
	}
	if n := strings.Count(text.String(), "r1.example"); n != 1 {
		t.Errorf("told of %d times: %s", n, text.String())
	}
	// Once it fits, it is published.
	wanted["r1.example"] = relays(3)["r1.example"]
	send(t, p, wanted)
	same(t, b, wanted)
}

// TestWhatIsGoneIsForgotten: the message that withdraws a target goes from the stream by itself,
// and the relay can be a target again whether it has gone or not.
func TestWhatIsGoneIsForgotten(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	p, _ := start(t, b)
	send(t, p, relays(2))
	send(t, p, nil)
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	last, err := stream.GetLastMsgForSubject(t.Context(), "grasp.target.r0.example")
	if err != nil {
		t.Fatal(err)
	}
	if ttl := last.Header.Get(jetstream.MsgTTLHeader); ttl != "11h0m0s" {
		t.Errorf("it goes after %q", ttl)
	}
	if err := stream.DeleteMsg(t.Context(), last.Sequence); err != nil { // half a day later
		t.Fatal(err)
	}
	if n := send(t, p, relays(2)); n != 2 {
		t.Errorf("%d messages for two relays that come back", n)
	}
	same(t, b, relays(2))
}

// counting counts the consumers that are made.
type counting struct {
	jetstream.JetStream
	consumers atomic.Int32
}

func (c *counting) OrderedConsumer(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	c.consumers.Add(1)
	return c.JetStream.OrderedConsumer(ctx, stream, cfg)
}

// counts returns a bus like one, which counts the consumers that are made.
func counts(b *bus.Bus) (*bus.Bus, *counting) {
	counted := &counting{JetStream: b.JS}
	return &bus.Bus{Conn: b.Conn, JS: counted}, counted
}
