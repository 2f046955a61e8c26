package main

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/logins"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

const patience = fixture.Patience

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

// from reads a value from JSON.
func from[T any](t *testing.T, text string) (v T) {
	t.Helper()
	must(t, json.Unmarshal([]byte(text), &v))
	return v
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
	held := func(identifier string, kind int) string {
		key, err := proto.HeldKey(identifier, &nostr.Event{ID: owner, Kind: kind, PubKey: owner})
		must(t, err)
		return key
	}
	words := strings.NewReplacer("TREE17", held("tree", 30617), "TREE18", held("tree", 30618), "STONE", held("stone", 30617), "AUTHOR", strings.Repeat("a", 64),
		"STATE-A", `"url":"wss://a.example","connection":3,"repos":7,"roots":9,"complete_until":"2026-01-02T12:00:00Z"`,
		"STATE-B", `"url":"wss://b.example:8080","connection":4,"failures":2,"last_error":"refused"`)
	for _, m := range fixture.Rows(words.Replace(`
		$KV.grasp-claims.relayconn.a.example      | {"worker":"r1"}
		$KV.grasp-claims.relayconn.b.example_8080 | {"worker":"gone"}
		$KV.grasp-claims.purgatory.07             | {"worker":"p1"}
		$KV.grasp-claims.purgatory.08             | {"worker":"gone"}
		$KV.grasp-workers.relayconn.r1            | {"name":"r1"}
		$KV.grasp-workers.purgatory.p1            | {"name":"p1"}
		$KV.grasp-relays.a.example                | {STATE-A,"health":1}
		$KV.grasp-relays.b.example_8080           | {STATE-B,"health":3}
		$KV.grasp-held.TREE17                     | {"identifier":"tree","phase":"waiting","event":{"kind":30617}}
		$KV.grasp-held.TREE18                     | {"identifier":"tree","phase":"waiting","event":{"kind":30618}}
		$KV.grasp-held.STONE                      | {"identifier":"stone","phase":"silent","event":{"kind":30617}}
		$KV.grasp-held.mark                       | {"writer":"one"}
		grasp.mark.events                         | {"writer":"one","at":"2026-01-02T12:00:00Z"}
		grasp.candidate.user                      | {}
		grasp.event.1.AUTHOR._                    | {}`)) {
		_, err := b.JS.Publish(within(t), m[0], []byte(m[1]))
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
	want := from[report](t, words.Replace(`{
		"relays": [{"relay":"a.example","state":"connected","health":"healthy","worker":"r1",STATE-A},
			{"relay":"b.example:8080","state":"connected_historic_sync_failures","health":"degraded",STATE-B}],
		"shards": {"p1":1,"none":63}, "writer": {},
		"held": {"events":3,"by":{"waiting announcement":1,"waiting state":1,"silent announcement":1},"hunts":1}}`))
	if told := (report{Relays: got.Relays, Shards: got.Shards, Writer: got.Writer, Held: got.Held}); !bytes.Equal(marshal(t, told), marshal(t, want)) {
		t.Errorf("got  %+v\nwant %+v", told, want)
	}
	if user, log := got.Streams[proto.StreamUser].Messages, got.Streams[proto.StreamEvents].Last; user != 1 || log != 2 || got.Processes[0].Process != "gateway one" {
		t.Errorf("%d candidates, the log ends at %d; %+v", user, log, got.Processes)
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
	r := from[report](t, `{
		"at": "2026-01-02T12:00:00Z", "nats": "nats://127.0.0.1:4222", "bans": 2, "writer": {"writer":"w\u001b[2J","at":"2026-01-02T11:59:00Z"},
		"processes": [
			{"process":"gateway g1","version":"v1","domain":"x.example","started":"2026-01-02T11:59:00Z","read":[{"name":"index","stream":"GRASP_EVENTS","seq":30}],
				"counts":{"clients":3},"disks":[{"folder":"./data","free":1073741824,"bytes":5368709120}]},
			{"process":"up u1","version":"v1","domain":"x.example","started":"2026-01-02T11:00:00Z","read":[{"name":"index","stream":"GRASP_EVENTS","seq":34}],
				"counts":{"clients":4,"log_max_bytes":1073741824,"repositories_hosted":2,"repositories_nobody":1},"troubles":{"full":"the log has 2 MiB"}}],
		"streams": {"GRASP_EVENTS":{"messages":12,"last_sequence":34,"bytes":5242880}, "GRASP_REJECTED":{"messages":3},
			"GRASP_CANDIDATES_USER":{"messages":5,"bytes":900}},
		"held": {"events":3,"by":{"waiting announcement":2,"silent kind 9":1},"hunts":1}, "shards": {"p1":2,"none":1},
		"relays": [
			{"relay":"a.example","state":"connected","health":"healthy","worker":"r1","repos":7,"roots":9,"subscriptions":2,"complete_until":"2026-01-02T12:00:00Z"},
			{"relay":"c.example","state":"disconnected","health":"degraded","naughty_until":"2026-01-02T12:00:00Z","last_error":"no such host"},
			{"relay":"b.example","state":"disconnected","health":"dead","failures":8,"url":"wss://b.example","last_error":"open WebSocket to wss://b.example: `+strings.Repeat(`no\n`, 50)+`"}]}`)
	var b strings.Builder
	r.write(&b)
	want := `domain        x.example
tendril       gateway g1: version v1, up for 1m0s
disk          ./data: 1.0 GiB free of 5.0 GiB
tendril       up u1: version v1, up for 1h0m0s
trouble       up u1: full: the log has 2 MiB
repositories  2 hosted, 0 held, 0 ended
authority     no one has authority over 1 of the hosted; tendril repo show says why
clients       7 connections
bans          2
NATS          nats://127.0.0.1:4222
log           12 messages (5.0 MiB of at most 1.0 GiB), last sequence 34; writer w?[2J, since 2026-01-02 11:59:00
rejected      3 ids remembered
held          3 events, fetching git data for 1 identifiers, 1 silent kind 9, 2 waiting announcement

QUEUE    PACKS  BYTES
USER     5      900 B
RELEASE  0      0 B
LIVE     0      0 B
SYNC     0      0 B

PROCESS     PROJECTION  STREAM        HAS READ  LAST  BEHIND
gateway g1  index       GRASP_EVENTS  30        34    4
up u1       index       GRASP_EVENTS  34        34    0

SHARDS HELD BY  SHARDS
none            1
p1              2

RELAY      STATE         HEALTH    WORKER  REPOSITORIES  ROOT EVENTS  OPEN  COMPLETE UNTIL       LAST ERROR
a.example  connected     healthy   r1      7             9            2     2026-01-02 12:00:00  -
c.example  disconnected  degraded  none    0             0            0     -                    no such host
b.example  disconnected  dead      none    0             0            0     -                    8 × no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?no?…
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// TestDegraded: each fault has its sentence, and a system without one has none.
func TestDegraded(t *testing.T) {
	t.Parallel()
	const good = `{"writer":{"writer":"w"}, "shards":{"w":64}, "streams":{"GRASP_EVENTS":{"last_sequence":5000,"bytes":50}},
		"processes":[{"process":"up u","read":[{"name":"index","stream":"GRASP_EVENTS","seq":4500}],"counts":{"log_max_bytes":100},
			"disks":[{"folder":"./data","free":10,"bytes":100}]}],
		"relays":[{"relay":"a.example","failures":2},{"relay":"b.example"}]}`
	for _, row := range fixture.Rows(`
		"up u"        | "up u"                         |
		{"writer":"w" | {"writer":""                   | no writer: events are taken in and wait
		{"w":64}      | {"w":60,"none":4}              | 4 of 64 shards have no worker: their repositories are not served
		"seq":4500    | "seq":3500                     | up u: the projection index is 1500 messages behind GRASP_EVENTS
		"bytes":50    | "bytes":95                     | the log has 95 B of at most 100 B
		"free":10     | "free":4                       | up u: the disk of ./data has 4 B free of 100 B
		"b.example"   | "b.example","failures":1       | none of 2 relays can be reached
		"b.example"   | "b.example","naughty_until":"2026-01-02T12:00:00Z" | none of 2 relays can be reached
		"up u",       | "up u","troubles":{"full":"x"}, | up u: full: x`) {
		if !strings.Contains(good, row[0]) {
			t.Fatalf("%s is not in the report", row[0])
		}
		r := from[report](t, strings.Replace(good, row[0], row[1], 1))
		if got := strings.Join(r.degraded(), "; "); got != row[2] {
			t.Errorf("with %s: %q, want %q", row[1], got, row[2])
		}
	}
	if got := (&report{}).degraded(); len(got) != 2 {
		t.Errorf("of nothing: %q", got)
	}
}
