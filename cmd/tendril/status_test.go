package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/logins"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture/nettest"
)

const patience = 1 * time.Minute

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(value)
	must(t, err)
	return raw
}

// TestLook: what is on the bus is in the report. The login that may write nothing is enough for it.
func TestLook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, logins.Init(dir, append(logins.Default(), proto.UserTendril)...))
	srv := nettest.NewNATS(t, filepath.Join(dir, logins.UsersFile))
	b, err := bus.Open(within(t), bus.Options{
		URL: srv.URL, Provisions: true, LoginFile: logins.LoginFile(dir, proto.UserTendril), Name: "tendril up one", Sizing: proto.DefaultSizing(),
	})
	must(t, err)
	defer b.Close()
	states := map[string]proto.RelayState{
		"a.example":      {URL: "wss://a.example", Connection: 3, Health: 1, Repos: 7, Roots: 9, CompleteUntil: noon},
		"b.example_8080": {URL: "wss://b.example:8080", Connection: 4, Health: 3, Failures: 2, LastError: "refused"},
	}
	shard := func(name string) string { return proto.ClaimKey(proto.GroupShards, name) }
	relay := func(name string) string { return proto.ClaimKey(proto.GroupRelays, name) }
	held := func(identifier string, kind int) string {
		key, err := proto.HeldKey{Identifier: identifier, Kind: kind, ShortID: strings.Repeat("a", proto.ShortIDLength)}.Key()
		must(t, err)
		return key
	}
	for _, m := range []struct {
		bucket, key string // without a bucket a subject
		value       any
	}{
		{proto.BucketClaims, relay("a.example"), proto.Claim{Worker: "r1"}}, {proto.BucketClaims, relay("b.example_8080"), proto.Claim{Worker: "gone"}},
		{proto.BucketClaims, shard(proto.ShardName(7)), proto.Claim{Worker: "p1"}}, {proto.BucketClaims, shard(proto.ShardName(8)), proto.Claim{Worker: "gone"}},
		{proto.BucketWorkers, relay("r1"), proto.Worker{Name: "r1"}}, {proto.BucketWorkers, shard("p1"), proto.Worker{Name: "p1"}},
		{proto.BucketRelays, "a.example", states["a.example"]}, {proto.BucketRelays, "b.example_8080", states["b.example_8080"]},
		{proto.BucketHeld, held("tree", 30617), proto.Held{Identifier: "tree", Event: &nostr.Event{Kind: 30617}, Phase: proto.PhaseWaiting}},
		{proto.BucketHeld, held("tree", 30618), proto.Held{Identifier: "tree", Event: &nostr.Event{Kind: 30618}, Phase: proto.PhaseWaiting}},
		{proto.BucketHeld, held("stone", 30617), proto.Held{Identifier: "stone", Event: &nostr.Event{Kind: 30617}, Phase: proto.PhaseSilent}},
		{proto.BucketHeld, proto.HeldMarkKey, proto.WriterMark{Writer: "one"}},
		{"", proto.SubjectEventsMark, proto.WriterMark{Writer: "one", At: noon}}, {"", proto.LaneUser.Subject(), struct{}{}},
		{"", proto.EventSubject{Kind: 1, PubKey: strings.Repeat("a", 64), Slot: "_"}.String(), struct{}{}},
	} {
		subject := m.key
		if m.bucket != "" {
			subject = proto.KVSubject(m.bucket, m.key)
		}
		_, err := b.JS.Publish(within(t), subject, marshal(t, m.value))
		must(t, err)
	}
	telling := time.NewTicker(50 * time.Millisecond)
	defer telling.Stop()
	progress := marshal(t, proto.Progress{Process: "gateway one", Read: []proto.Reading{{Name: "index", Stream: proto.StreamEvents, Seq: 1}}})
	go func() {
		for t.Context().Err() == nil {
			<-telling.C
			_ = b.Conn.Publish(proto.SubjectProgress, progress)
		}
	}()

	operator, err := bus.Look(bus.Options{URL: srv.URL, LoginFile: logins.LoginFile(dir, proto.UserOperator)}, patience)
	must(t, err)
	defer operator.Close()
	got, err := look(&reader{Bus: operator, ctx: within(t)})
	must(t, err)
	for _, c := range []struct{ got, want any }{
		{got.Relays, []relayRow{
			{"a.example", "connected", "healthy", "r1", states["a.example"]},
			{"b.example:8080", "connected_historic_sync_failures", "degraded", "", states["b.example_8080"]},
		}},
		{got.Shards, map[string]int{"p1": 1, none: 63}},
		{got.Held, heldState{3, map[string]int{"waiting announcement": 1, "waiting state": 1, "silent announcement": 1}, 1}},
		{got.Writer, proto.WriterMark{Writer: "one", At: noon}},
		{got.Streams[proto.StreamUser].Messages, uint64(1)},
		{got.Streams[proto.StreamEvents].Last, uint64(2)},
		{got.Processes[0].Process, "gateway one"},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("got  %+v\nwant %+v", c.got, c.want)
		}
	}
	must(t, operator.Conn.Flush())
	if n := operator.Refused(); n != 0 || operator.Conn.NumSubscriptions() > 1 { // one is for answers
		t.Errorf("%d refused: %q; %d subscriptions are left", n, srv.Refused(), operator.Conn.NumSubscriptions())
	}
	srv.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := look(&reader{Bus: operator, ctx: ctx}); err == nil {
		t.Error("a server that is gone has a state")
	}
}

func TestWriteReport(t *testing.T) {
	t.Parallel()
	r := report{
		At: noon, URL: "nats://127.0.0.1:4222",
		Processes: []proto.Progress{
			{
				Process: "gateway g1", Version: "v1", Domain: "x.example", Started: noon.Add(-time.Minute), Read: []proto.Reading{{Name: "index", Stream: "GRASP_EVENTS", Seq: 30}},
				Counts: map[string]int64{"clients": 3}, Disks: []proto.Disk{{Folder: "./data", Free: 1 << 30, Bytes: 5 << 30}},
			},
			{
				Process: "up u1", Version: "v1", Domain: "x.example", Started: noon.Add(-time.Hour), Read: []proto.Reading{{Name: "index", Stream: "GRASP_EVENTS", Seq: 34}},
				Counts:   map[string]int64{"clients": 4, "log_max_bytes": 1 << 30, "repositories_hosted": 2},
				Troubles: map[string]string{"full": "the log has 2 MiB"},
			},
		},
		Streams: map[string]streamState{proto.StreamEvents: {12, 34, 5 << 20}, proto.StreamRejected: {3, 3, 0}, proto.StreamUser: {5, 5, 900}},
		Bans:    2, Writer: proto.WriterMark{Writer: "w\x1b[2J", At: noon.Add(-time.Minute)},
		Held: heldState{3, map[string]int{"waiting announcement": 2, "silent kind 9": 1}, 1},
		Relays: []relayRow{
			{"a.example", "connected", "healthy", "r1", proto.RelayState{Repos: 7, Roots: 9, Subscriptions: 2, CompleteUntil: noon}},
			{"b.example", "disconnected", "dead", "", proto.RelayState{Failures: 8, URL: "wss://b.example", LastError: "open WebSocket to wss://b.example: " + strings.Repeat("no\n", 50)}},
		},
		Shards: map[string]int{"p1": 2, none: 1},
	}
	var b strings.Builder
	r.write(&b)
	want := `domain        x.example
tendril       gateway g1: version v1, up for 1m0s
disk          ./data: 1.0 GiB free of 5.0 GiB
tendril       up u1: version v1, up for 1h0m0s
trouble       up u1: full: the log has 2 MiB
repositories  2 hosted, 0 held, 0 ended
clients       7 connections
bans          2
NATS          nats://127.0.0.1:4222
log           12 messages (5.0 MiB of at most 1.0 GiB), last sequence 34; writer w?[2J, for 1m0s
rejected      3 ids remembered
held          3 events, hunts for 1 identifiers, 1 silent kind 9, 2 waiting announcement

LANE     QUEUED  BYTES
USER     5       900 B
RELEASE  0       0 B
LIVE     0       0 B
SYNC     0       0 B

PROCESS     KEEPS  OF            HAS READ  LAST  BEHIND
gateway g1  index  GRASP_EVENTS  30        34    4
up u1       index  GRASP_EVENTS  34        34    0

SHARDS HELD BY  SHARDS
none            1
p1              2

RELAY      STATE         HEALTH   WORKER  REPOSITORIES  ROOTS  OPEN  COMPLETE UNTIL       LAST ERROR
a.example  connected     healthy  r1      7             9      2     2026-01-02 12:00:00  -
b.example  disconnected  dead     none    0             0      0     -                    8 × no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?…
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
