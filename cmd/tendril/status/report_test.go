package status

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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

func TestBehind(t *testing.T) {
	t.Parallel()
	consumer := func(made, last time.Duration, waiting int, pending uint64) *jetstream.ConsumerInfo {
		c := &jetstream.ConsumerInfo{Created: noon.Add(made), NumWaiting: waiting, NumPending: pending}
		if last != 0 {
			at := noon.Add(last)
			c.Delivered.Last = &at
		}
		return c
	}
	for name, c := range map[string]struct {
		consumers []*jetstream.ConsumerInfo
		lag       uint64
		last      time.Duration
	}{
		"idle":                        {[]*jetstream.ConsumerInfo{consumer(0, 0, 1, 0)}, 0, 0},
		"behind":                      {[]*jetstream.ConsumerInfo{consumer(0, 5, 1, 12)}, 12, 5},
		"stuck":                       {[]*jetstream.ConsumerInfo{consumer(0, 5, 0, 12)}, 12, 5},
		"the worst of two":            {[]*jetstream.ConsumerInfo{consumer(0, 5, 1, 3), consumer(1, 6, 1, 9)}, 9, 6},
		"what it replaced is no lag":  {[]*jetstream.ConsumerInfo{consumer(0, 5, 0, 300), consumer(7, 8, 1, 2)}, 2, 8},
		"a quiet one is not replaced": {[]*jetstream.ConsumerInfo{consumer(0, 5, 1, 4), consumer(7, 8, 1, 2)}, 4, 5},
	} {
		got := behind("S", "r", c.consumers)
		if want := (Projection{Stream: "S", Reader: "r", Lag: c.lag, Last: noon.Add(c.last)}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
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
		Shards:      []Shard{{Shard: "00", Held: 1}, {Shard: "01", Worker: "p1", Held: 1, Hunts: 1}, {Shard: "02", Worker: "p1"}},
		Lanes:       []Lane{{Name: "user", Queued: 5, Deciding: 2, Bytes: 900, MaxBytes: 64 << 20}},
		Projections: []Projection{{Stream: "GRASP_EVENTS", Reader: "gateway g1", Lag: 4, Last: noon.Add(-2 * time.Second)}},
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

SHARDS HELD BY  SHARDS  HELD EVENTS  HUNTS
p1              2       1            1
nobody          1       1            0

RELAY      STATE         HEALTH   WORKER  REPOSITORIES  ROOTS  OPEN  COMPLETE UNTIL       LAST ERROR
a.example  connected     healthy  r1      7             9      2     2026-01-02 12:00:00  -
b.example  disconnected  dead     nobody  0             0      0     -                    8 × no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?…

PROJECTION OF  BY          BEHIND  LAST READ
GRASP_EVENTS   gateway g1  4       2s ago
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
