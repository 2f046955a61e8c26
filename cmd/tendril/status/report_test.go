package status

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"tendril.dev/proto"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// crew is a worker of each group that is there, and what it holds. Its former self held more.
func crew() (claims, map[string]map[string]proto.Worker) {
	held := claims{
		proto.GroupRelays: {
			"a.example":      {Worker: "r1", Incarnation: "now"},
			"b.example_8080": {Worker: "r1", Incarnation: "before"},
			"c.example":      {Worker: "gone", Incarnation: "now"},
			"d.example":      {Worker: "r1", Incarnation: "now"},
			"e.example":      {Worker: "gone", Incarnation: "now"},
		},
		proto.GroupShards: {proto.ShardName(proto.ShardOf("tree")): {Worker: "p1", Incarnation: "now"}},
	}
	return held, map[string]map[string]proto.Worker{
		proto.GroupRelays: {"r1": {Incarnation: "now"}},
		proto.GroupShards: {"p1": {Incarnation: "now"}},
	}
}

func TestRelays(t *testing.T) {
	t.Parallel()
	held, live := crew()
	got := relays(map[string]proto.RelayState{
		"a.example":      {URL: "wss://a.example", Worker: "r1", Connection: 3, Health: 1, Repos: 7, Roots: 9, Subscriptions: 2, CompleteUntil: noon},
		"b.example_8080": {URL: "wss://b.example:8080", Worker: "r1", Connection: 4, Health: 3, Failures: 2, LastError: "refused"},
		"c.example":      {Connection: 99, Health: -1},
	}, held, live)
	want := []Relay{
		{Name: "a.example", URL: "wss://a.example", State: "connected", Health: "healthy", Worker: "r1", Repositories: 7, Roots: 9, Subscriptions: 2, CompleteUntil: noon},
		{Name: "b.example:8080", URL: "wss://b.example:8080", State: "connected_historic_sync_failures", Health: "degraded", Failures: 2, LastError: "refused"},
		{Name: "c.example", State: "unknown", Health: "unknown"},
		{Name: "d.example", State: "disconnected", Health: "disconnected", Worker: "r1"}, // claimed, and nothing said yet
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestPurgatory(t *testing.T) {
	t.Parallel()
	held, live := crew()
	if proto.ShardOf("tree") == proto.ShardOf("stone") {
		t.Fatal("want identifiers of two shards")
	}
	sum, shards := purgatory(map[string]heldEvent{
		"1": {identifier: "tree", kind: 30617, phase: proto.PhaseWaiting, at: noon, until: noon.Add(time.Hour)},
		"2": {identifier: "tree", kind: 30618, phase: proto.PhaseWaiting, at: noon.Add(-time.Minute), until: noon.Add(time.Hour)},
		"3": {identifier: "stone", kind: 30617, phase: proto.PhaseSilent, at: noon, until: noon.Add(time.Minute)},
	}, held, live)
	want := Held{
		Events: 3, Phases: map[string]int{"waiting": 2, "silent": 1}, Kinds: map[int]int{30617: 2, 30618: 1},
		Hunts: 1, Oldest: noon.Add(-time.Minute), Expires: noon.Add(time.Minute),
	}
	if !reflect.DeepEqual(sum, want) {
		t.Errorf("%+v, want %+v", sum, want)
	}
	byName := map[string]Shard{}
	for _, s := range shards {
		byName[s.Shard] = s
	}
	tree, stone := proto.ShardName(proto.ShardOf("tree")), proto.ShardName(proto.ShardOf("stone"))
	if wanted := (map[string]Shard{tree: {tree, "p1", 2, 1}, stone: {stone, "", 1, 0}}); !reflect.DeepEqual(byName, wanted) {
		t.Errorf("%+v, want %+v", byName, wanted)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	report := Report{
		At: noon, Server: Server{URL: "nats://127.0.0.1:4222", Version: "2.15.2"},
		Log:  Log{Messages: 12, LastSeq: 34, Bytes: 5 << 20, Writer: "w\x1b[2J", WriterSince: noon.Add(-time.Minute), Rejected: 3},
		Held: Held{Events: 3, Phases: map[string]int{"waiting": 2, "silent": 1}, Kinds: map[int]int{30617: 2, 9: 1}, Hunts: 1, Oldest: noon.Add(-time.Hour)},
		Relays: []Relay{
			{Name: "a.example", State: "connected", Health: "healthy", Worker: "r1", Repositories: 7, Roots: 9, Subscriptions: 2, CompleteUntil: noon},
			{Name: "b.example", State: "disconnected", Health: "dead", Failures: 8, URL: "wss://b.example", LastError: "open WebSocket to wss://b.example: " + strings.Repeat("no\n", 50)},
		},
		Shards: []Shard{{Shard: "00", Held: 1}, {Shard: "01", Worker: "p1", Held: 1, Hunts: 1}, {Shard: "02", Worker: "p1"}},
		Lanes:  []Lane{{Name: "user", Queued: 5, Deciding: 2, Bytes: 900, MaxBytes: 64 << 20}},
		Reads:  []Read{{"gateway g1", "index", "GRASP_EVENTS", 30, 34}, {"up u1", "index", "GRASP_EVENTS", 34, 34}},
	}
	var b strings.Builder
	if err := report.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	want := `NATS      nats://127.0.0.1:4222, version 2.15.2
log       12 messages (5.0 MiB), last sequence 34; writer w?[2J, for 1m0s
rejected  3 ids remembered
held      3 events (1 silent, 2 waiting, 1 of kind 9, 2 announcements), the oldest for 1h0m0s; hunts for 1 identifiers

LANE  QUEUED  WITH THE WRITER  BYTES  OF
user  5       2                900 B  64.0 MiB

PROCESS     KEEPS  OF            HAS READ  LAST  BEHIND
gateway g1  index  GRASP_EVENTS  30        34    4
up u1       index  GRASP_EVENTS  34        34    0

SHARDS HELD BY  SHARDS  HELD EVENTS  HUNTS
p1              2       1            1
nobody          1       1            0

RELAY      STATE         HEALTH   WORKER  REPOSITORIES  ROOTS  OPEN  COMPLETE UNTIL       LAST ERROR
a.example  connected     healthy  r1      7             9      2     2026-01-02 12:00:00  -
b.example  disconnected  dead     nobody  0             0      0     -                    8 × no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?…
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
