package status

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// patience is how long anything may take on a slow machine.
const patience = 3 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func connect(t *testing.T, url string) *bus.Bus {
	t.Helper()
	b, err := bus.Look(bus.Options{URL: url, Name: "test"}, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func services(t *testing.T, url, name string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(within(t), bus.Options{URL: url, Provisions: true, Name: "tendril " + name, Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func store(t *testing.T, b *bus.Bus, bucket, key string, value any) {
	t.Helper()
	kv, err := b.Bucket(within(t), bucket)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(within(t), key, raw); err != nil {
		t.Fatal(err)
	}
}

// TestReport: what is on the bus is in the report, and changes come into the next one.
func TestReport(t *testing.T) {
	t.Parallel()
	url := bustest.New(t).URL
	b := services(t, url, "ingest one")
	fill(t, b)
	looking := connect(t, url)
	reader, err := Open(within(t), looking)
	if err != nil {
		t.Fatal(err)
	}
	got, err := reader.Report(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Relays) != 1 || got.Relays[0].State != "connected" || got.Relays[0].Worker != "r1" {
		t.Errorf("relays: %+v", got.Relays)
	}
	if got.Held.Events != 1 || got.Held.Hunts != 1 || len(got.Shards) != 1 || got.Shards[0].Hunts != 1 {
		t.Errorf("held: %+v, %+v", got.Held, got.Shards)
	}
	if got.Log.Messages != 3 || got.Log.Writer != "one" || !got.Log.WriterSince.Equal(noon) || got.Log.Rejected != 0 {
		t.Errorf("log: %+v", got.Log)
	}
	if len(got.Lanes) != 4 || got.Lanes[0].Name != "user" || got.Lanes[0].Queued != 1 || got.Lanes[0].MaxBytes != 64<<20 {
		t.Errorf("lanes: %+v", got.Lanes)
	}

	// A process that has read two of the three messages of the log.
	progress, err := json.Marshal(proto.Progress{Process: "gateway one", Read: []proto.Reading{{Name: "index", Stream: proto.StreamEvents, Seq: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Conn.Publish(proto.SubjectProgress, progress); err != nil {
		t.Fatal(err)
	}
	eventually(t, reader, "how far it is behind", func(r Report) bool {
		return slices.Equal(r.Reads, []Read{{"gateway one", "index", proto.StreamEvents, 2, 3}})
	})
	store(t, b, proto.BucketRelays, "a.example", proto.RelayState{Connection: 0, Health: 4})
	eventually(t, reader, "the changes", func(r Report) bool {
		return r.Relays[0].Health == "dead"
	})
	kv, err := b.Bucket(within(t), proto.BucketHeld)
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(within(t), heldKey(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, reader, "nothing is held", func(r Report) bool { return r.Held.Events == 0 })

	if err := b.JS.DeleteKeyValue(within(t), proto.BucketClaims); err != nil {
		t.Fatal(err)
	}
	services(t, url, "ingest two")
	if _, err := reader.Report(within(t)); !errors.Is(err, ErrReplaced) {
		t.Errorf("a bucket that was made anew: %v", err)
	}
	reader.Close()
	for ctx := within(t); looking.Conn.NumSubscriptions() > 1; time.Sleep(time.Millisecond) { // one is for answers
		if ctx.Err() != nil {
			t.Fatalf("%d subscriptions after the end", looking.Conn.NumSubscriptions())
		}
	}
}

func eventually(t *testing.T, r *Reader, what string, ok func(Report) bool) {
	t.Helper()
	ctx := within(t)
	for {
		report, err := r.Report(ctx)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if ok(report) {
			return
		}
	}
}

func heldKey(t *testing.T) string {
	t.Helper()
	key, err := proto.HeldKey{Identifier: "tree", Kind: 30617, ShortID: strings.Repeat("a", proto.ShortIDLength)}.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// fill puts one of each onto the bus.
func fill(t *testing.T, b *bus.Bus) {
	t.Helper()
	store(t, b, proto.BucketHeld, heldKey(t), proto.Held{Identifier: "tree", Phase: proto.PhaseWaiting, HeldAt: noon, ExpiresAt: noon})
	store(t, b, proto.BucketHeld, proto.HeldMarkKey, proto.WriterMark{Writer: "one"})
	store(t, b, proto.BucketRelays, "a.example", proto.RelayState{Connection: 3, Health: 1})
	store(t, b, proto.BucketClaims, proto.ClaimKey(proto.GroupRelays, "a.example"), proto.Claim{Worker: "r1", Incarnation: "i"})
	store(t, b, proto.BucketWorkers, proto.ClaimKey(proto.GroupRelays, "r1"), proto.Worker{Name: "r1", Incarnation: "i"})
	mark, err := json.Marshal(proto.WriterMark{Writer: "one", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	for subject, data := range map[string][]byte{
		proto.SubjectEventsMark:  mark,
		proto.LaneUser.Subject(): []byte("{}"),
		proto.EventSubject{Kind: 1, PubKey: strings.Repeat("a", 64), Slot: "_"}.String():  []byte("{}"),
		proto.EventSubject{Kind: 30, PubKey: strings.Repeat("b", 64), Slot: "_"}.String(): []byte("{}"),
	} {
		if _, err := b.JS.Publish(within(t), subject, data); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOperatorReads: the login that may write nothing is enough, and nothing that is asked is
// refused.
func TestOperatorReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := logins.Init(dir, append(logins.Default(), proto.UserTendril)...); err != nil {
		t.Fatal(err)
	}
	srv := bustest.WithUsers(t, filepath.Join(dir, logins.UsersFile))
	ingest, err := bus.Open(within(t), bus.Options{
		URL: srv.URL, Provisions: true, LoginFile: logins.LoginFile(dir, proto.UserIngest), Name: "tendril ingest one", Sizing: proto.DefaultSizing(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ingest.Close()
	file := logins.LoginFile(dir, proto.UserOperator)
	login, err := logins.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []bus.Options{{URL: srv.URL, LoginFile: file}, {URL: srv.URL, Password: login.Password}} {
		operatorReads(t, srv, o)
	}
	if _, err := bus.Look(bus.Options{URL: srv.URL, Password: login.Password + "x"}, patience); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("with a wrong password: %v", err)
	}
}

func operatorReads(t *testing.T, srv *bustest.NATS, o bus.Options) {
	t.Helper()
	operator, err := bus.Look(o, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	reader, err := Open(within(t), operator)
	if err != nil {
		t.Fatal(err)
	}
	report, err := reader.Report(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Lanes) != 4 {
		t.Errorf("%+v", report)
	}
	if err := operator.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := operator.Refused(); n != 0 {
		t.Errorf("%d refused: %q", n, srv.Refused())
	}
}

func TestNothingThere(t *testing.T) {
	t.Parallel()
	if _, err := Open(within(t), connect(t, bustest.New(t).URL)); !errors.Is(err, ErrNothing) {
		t.Error(err)
	}
	// A server that says nothing any more.
	nats := bustest.New(t)
	services(t, nats.URL, "ingest one")
	b := connect(t, nats.URL)
	nats.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, b); err == nil {
		t.Error("read from nothing")
	}
}
