package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/logins"
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
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func heldKey(t *testing.T, identifier string, kind int) string {
	t.Helper()
	key, err := proto.HeldKey{Identifier: identifier, Kind: kind, ShortID: strings.Repeat("a", proto.ShortIDLength)}.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestLook: what is on the bus is in the report. The login that may write nothing is enough for it.
func TestLook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := logins.Init(dir, append(logins.Default(), proto.UserTendril)...); err != nil {
		t.Fatal(err)
	}
	srv := nettest.NewNATS(t, filepath.Join(dir, logins.UsersFile))
	b, err := bus.Open(within(t), bus.Options{
		URL: srv.URL, Provisions: true, LoginFile: logins.LoginFile(dir, proto.UserTendril), Name: "tendril up one", Sizing: proto.DefaultSizing(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	held := proto.Held{Identifier: "tree", Phase: proto.PhaseWaiting, HeldAt: noon, ExpiresAt: noon}
	for _, m := range []struct {
		subject string
		value   any
	}{
		{proto.KVSubject(proto.BucketHeld, heldKey(t, "tree", 30617)), held}, {proto.KVSubject(proto.BucketHeld, heldKey(t, "gone", 30617)), held},
		{proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey), proto.WriterMark{Writer: "one"}},
		{proto.KVSubject(proto.BucketRelays, "a.example"), proto.RelayState{Connection: 3, Health: 1}},
		{proto.KVSubject(proto.BucketClaims, proto.ClaimKey(proto.GroupRelays, "a.example")), proto.Claim{Worker: "r1"}},
		{proto.KVSubject(proto.BucketWorkers, proto.ClaimKey(proto.GroupRelays, "r1")), proto.Worker{Name: "r1"}},
		{proto.SubjectEventsMark, proto.WriterMark{Writer: "one", At: noon}}, {proto.LaneUser.Subject(), struct{}{}},
		{proto.EventSubject{Kind: 1, PubKey: strings.Repeat("a", 64), Slot: "_"}.String(), struct{}{}},
		{proto.EventSubject{Kind: 30, PubKey: strings.Repeat("b", 64), Slot: "_"}.String(), struct{}{}},
	} {
		if _, err := b.JS.Publish(within(t), m.subject, marshal(t, m.value)); err != nil {
			t.Fatal(err)
		}
	}
	kv, err := b.Bucket(within(t), proto.BucketHeld)
	if err == nil {
		err = kv.Delete(within(t), heldKey(t, "gone", 30617))
	}
	if err != nil {
		t.Fatal(err)
	}
	telling := time.NewTicker(50 * time.Millisecond) // a process that has read two of three messages
	defer telling.Stop()
	progress := marshal(t, proto.Progress{Process: "gateway one", Read: []proto.Reading{{Name: "index", Stream: proto.StreamEvents, Seq: 2}}})
	go func() {
		for t.Context().Err() == nil {
			<-telling.C
			_ = b.Conn.Publish(proto.SubjectProgress, progress)
		}
	}()

	operator, err := bus.Look(bus.Options{URL: srv.URL, LoginFile: logins.LoginFile(dir, proto.UserOperator)}, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	got, err := look(within(t), operator)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Relays) != 1 || got.Relays[0].State != "connected" || got.Relays[0].Worker != "r1" {
		t.Errorf("relays: %+v", got.Relays)
	}
	if got.Held.Events != 1 || got.Held.Hunts != 1 || len(got.Shards) != 1 || got.Shards[0] != (shardsOf{"", 64, 1, 1}) {
		t.Errorf("held: %+v, %+v", got.Held, got.Shards)
	}
	if got.Log.Messages != 3 || got.Log.Writer != "one" || !got.Log.WriterSince.Equal(noon) || got.Log.Rejected != 0 {
		t.Errorf("log: %+v", got.Log)
	}
	if len(got.Lanes) != 4 || got.Lanes[0].Name != "user" || got.Lanes[0].Queued != 1 || got.Lanes[0].MaxBytes != 64<<20 {
		t.Errorf("lanes: %+v", got.Lanes)
	}
	if len(got.Processes) != 1 || got.Processes[0].Read[0].Seq != 2 || got.Ends[proto.StreamEvents] != 3 {
		t.Errorf("reads: %+v, %v", got.Processes, got.Ends)
	}
	if err := operator.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := operator.Refused(); n != 0 || operator.Conn.NumSubscriptions() > 1 { // one is for answers
		t.Errorf("%d refused: %q; %d subscriptions are left", n, srv.Refused(), operator.Conn.NumSubscriptions())
	}
	srv.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := look(ctx, operator); err == nil {
		t.Error("a server that is gone has a state")
	}
}

// crew is a worker of each group that is there, and what it holds. Its former self held more.
func crew() claims {
	relay := func(name string) string { return proto.ClaimKey(proto.GroupRelays, name) }
	return claims{
		held: map[string]proto.Claim{
			relay("a.example"):      {Worker: "r1"},
			relay("b.example_8080"): {Worker: "r0"},
			relay("c.example"):      {Worker: "gone"},
			relay("d.example"):      {Worker: "r1"},
			relay("e.example"):      {Worker: "gone"},
			proto.ClaimKey(proto.GroupShards, proto.ShardName(proto.ShardOf("tree"))): {Worker: "p1"},
		},
		workers: map[string]proto.Worker{relay("r1"): {}, proto.ClaimKey(proto.GroupShards, "p1"): {}},
	}
}

func TestRelays(t *testing.T) {
	t.Parallel()
	states := map[string]proto.RelayState{
		"a.example":      {URL: "wss://a.example", Worker: "r1", Connection: 3, Health: 1, Repos: 7, Roots: 9, Subscriptions: 2, CompleteUntil: noon},
		"b.example_8080": {URL: "wss://b.example:8080", Worker: "r1", Connection: 4, Health: 3, Failures: 2, LastError: "refused"},
		"c.example":      {Connection: 99, Health: -1},
	}
	got := relays(states, crew())
	want := []relayRow{
		{"a.example", "connected", "healthy", "r1", states["a.example"]},
		{"b.example:8080", "connected_historic_sync_failures", "degraded", "", states["b.example_8080"]},
		{"c.example", "unknown", "unknown", "", states["c.example"]},
		{"d.example", "disconnected", "disconnected", "r1", states["d.example"]}, // claimed, and nothing said yet
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSumHeld(t *testing.T) {
	t.Parallel()
	if proto.ShardOf("tree") == proto.ShardOf("stone") {
		t.Fatal("want identifiers of two shards")
	}
	sum, shards := sumHeld(map[string]heldEvent{
		heldKey(t, "tree", 30617):  {Phase: proto.PhaseWaiting, HeldAt: noon, ExpiresAt: noon.Add(time.Hour)},
		heldKey(t, "tree", 30618):  {Phase: proto.PhaseWaiting, HeldAt: noon.Add(-time.Minute), ExpiresAt: noon.Add(time.Hour)},
		heldKey(t, "stone", 30617): {Phase: proto.PhaseSilent, HeldAt: noon, ExpiresAt: noon.Add(time.Minute)},
		proto.HeldMarkKey:          {},
	}, crew())
	want := heldState{
		Events: 3, Phases: map[string]int{"waiting": 2, "silent": 1}, Kinds: map[int]int{30617: 2, 30618: 1},
		Hunts: 1, Oldest: noon.Add(-time.Minute), Expires: noon.Add(time.Minute),
	}
	if !reflect.DeepEqual(sum, want) {
		t.Errorf("%+v, want %+v", sum, want)
	}
	if wanted := []shardsOf{{"p1", 1, 2, 1}, {"", 63, 1, 0}}; !slices.Equal(shards, wanted) {
		t.Errorf("%+v, want %+v", shards, wanted)
	}
}

func TestWriteReport(t *testing.T) {
	t.Parallel()
	r := report{
		At: noon, URL: "nats://127.0.0.1:4222", Version: "2.15.2",
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
		Ends: map[string]uint64{"GRASP_EVENTS": 34}, Bans: 2,
		Log:  logState{Messages: 12, LastSeq: 34, Bytes: 5 << 20, Writer: "w\x1b[2J", WriterSince: noon.Add(-time.Minute), Rejected: 3},
		Held: heldState{Events: 3, Phases: map[string]int{"waiting": 2, "silent": 1}, Kinds: map[int]int{30617: 2, 9: 1}, Hunts: 1, Oldest: noon.Add(-time.Hour)},
		Relays: []relayRow{
			{"a.example", "connected", "healthy", "r1", proto.RelayState{Repos: 7, Roots: 9, Subscriptions: 2, CompleteUntil: noon}},
			{"b.example", "disconnected", "dead", "", proto.RelayState{Failures: 8, URL: "wss://b.example", LastError: "open WebSocket to wss://b.example: " + strings.Repeat("no\n", 50)}},
		},
		Shards: []shardsOf{{"p1", 2, 1, 1}, {"", 1, 1, 0}},
		Lanes:  []laneState{{Name: "user", Queued: 5, Deciding: 2, Bytes: 900, MaxBytes: 64 << 20}},
	}
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	want := `domain        x.example
tendril       gateway g1: version v1, up for 1m0s
disk          ./data: 1.0 GiB free of 5.0 GiB
tendril       up u1: version v1, up for 1h0m0s
trouble       up u1: full: the log has 2 MiB
repositories  2 hosted, 0 held, 0 ended
clients       7 connections
bans          2
NATS          nats://127.0.0.1:4222, version 2.15.2
log           12 messages (5.0 MiB of at most 1.0 GiB), last sequence 34; writer w?[2J, for 1m0s
rejected      3 ids remembered
held          3 events (1 silent, 2 waiting, 1 of kind 9, 2 announcements), the oldest for 1h0m0s; hunts for 1 identifiers

LANE  QUEUED  WITH THE WRITER  BYTES  OF
user  5       2                900 B  64 MiB

PROCESS     KEEPS  OF            HAS READ  LAST  BEHIND
gateway g1  index  GRASP_EVENTS  30        34    4
up u1       index  GRASP_EVENTS  34        34    0

SHARDS HELD BY  SHARDS  HELD EVENTS  HUNTS
p1              2       1            1
none            1       1            0

RELAY      STATE         HEALTH   WORKER  REPOSITORIES  ROOTS  OPEN  COMPLETE UNTIL       LAST ERROR
a.example  connected     healthy  r1      7             9      2     2026-01-02 12:00:00  -
b.example  disconnected  dead     none    0             0      0     -                    8 × no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?…
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
