package bench

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/bench/feed"
	"tendril.dev/test/corpus"
	"tendril.dev/test/world"
)

// The relays of the row "replicas", and how many of them each repository is on.
const replicaRelays, replicaCopies = 100, 5

// manyReplicas measures how long further discoveries and relay workers take from their start until
// they are ready, and what they have resident, with so many events in the log, half of them root
// events of 20 repositories on 100 relays. The relays have nothing, and nothing older is asked of
// them: what is measured is the start.
func manyReplicas(t *testing.T, s *stage) {
	source, err := feed.Start(world.Program(t, "test/bench/source"), "-relays", fmt.Sprint(replicaRelays))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Stop(); err != nil {
			t.Errorf("the source ended: %v", err)
		}
	})
	a := newApart(t, source.Relays[0])
	a.env["NGIT_SYNC_STARTUP_DELAY_SECS"] = "3600"
	s.say("%d events are written to the log", *eventCount)
	fillWithRoots(t, a.nats.URL, *eventCount, source.Relays)
	s.say("a gateway reads them")
	_, took := a.start(t, "gateway")
	s.say("it is ready after %v", took.Round(time.Second))

	begun := time.Now()
	p, _ := a.start(t, "discovery")
	s.add(fmt.Sprintf("%d events in the log: the first discovery, until its targets are published", *eventCount),
		fmt.Sprintf("%.2f s; %s", time.Since(begun).Seconds(), p.usage(t)), "", s.limits.String())
	s.say("%s of targets", mib(streamBytes(t, a.nats.URL, proto.StreamTargets)))
	const target = "< 1 s, no volume, < 64 MiB resident"
	p, took = a.start(t, "discovery")
	s.add("… another discovery, from start to ready", fmt.Sprintf("%.2f s; %s", took.Seconds(), p.usage(t)), target, s.limits.String())
	p, took = a.start(t, "relayconn")
	s.add("… the first relay worker, from start to ready", fmt.Sprintf("%.2f s; %s", took.Seconds(), p.usage(t)), target, s.limits.String())
	world.Await(t, "it holds all relays", func() bool { return strings.Count(p.Output(), "msg=connected ") >= replicaRelays })
	s.add(fmt.Sprintf("… the same, when it holds all %d relays", replicaRelays), p.usage(t), "", "")
	p, took = a.start(t, "relayconn")
	s.add("… another relay worker, from start to ready", fmt.Sprintf("%.2f s; %s", took.Seconds(), p.usage(t)), target, s.limits.String())
	a.fiveAtOnce(t, s)
}

// streamBytes is what a stream takes up.
func streamBytes(t *testing.T, url, name string) int64 {
	t.Helper()
	js, done := world.JetStream(t, url)
	defer done()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return int64(stream.CachedInfo().State.Bytes)
}

// fillWithRoots writes the announcements of 20 repositories, each on its share of the relays, and
// so many events to the log as ingest does. Every other event is a root event, the others are
// comments. Nobody who reads them looks at their signatures, which are none.
func fillWithRoots(t *testing.T, url string, n int, relays []string) {
	t.Helper()
	b, err := bus.Open(world.Context(t), bus.Options{Name: "fill", URL: url, Sizing: proto.DefaultSizing(), Provisions: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	var msgs []*nats.Msg
	write := func(ev *nostr.Event) {
		if ev != nil {
			msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
		}
		if len(msgs) == bus.MaxBatch || ev == nil && len(msgs) > 0 {
			if _, err := b.PublishBatch(t.Context(), msgs, nil); err != nil {
				t.Fatal(err)
			}
			msgs = nil
		}
	}
	var references [repositories]string
	for i := range references {
		owner, err := corpus.Owner(i)
		if err != nil {
			t.Fatal(err)
		}
		id, listed := corpus.Identifier(i), []string(nil)
		for c := range replicaCopies {
			listed = append(listed, relays[(i*replicaCopies+c)%len(relays)])
		}
		ev := world.Acquaint(t, owner).Announce(id, id, nil, listed)
		references[i] = fmt.Sprintf("%d:%s:%s", nostr.KindAnnouncement, ev.PubKey, id)
		write(ev)
	}
	for i := range n - repositories {
		write(threadEvent(i, references[i/2%repositories]))
	}
	write(nil)
}

// threadEvent is the nth of a log's events, a root event of a repository or a comment to it, of
// 600 to 900 bytes by one of 20,000 authors.
func threadEvent(n int, reference string) *nostr.Event {
	hash := func(what string, n int) string {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(what), uint64(n)))
		return hex.EncodeToString(sum[:])
	}
	ev := &nostr.Event{
		ID: hash("event", n), PubKey: hash("author", n*13%20_000), CreatedAt: nostr.Timestamp(1_700_000_000 + n/3), Kind: nostr.KindIssue,
		Sig: hash("sig", n) + hash("gis", n), Content: strings.Repeat("as said before, ", 4+n%20), Tags: nostr.Tags{{"a", reference}},
	}
	if n%2 == 1 {
		root := hash("event", n-1)
		ev.Kind = nostr.KindComment
		ev.Tags = append(ev.Tags, nostr.Tag{"e", root}, nostr.Tag{"E", root}, nostr.Tag{"K", "1621"})
	}
	return ev
}
