package bus_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

const author = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"

func open(t *testing.T, o bus.Options) *bus.Bus {
	t.Helper()
	if o.Sizing == (proto.Sizing{}) {
		o.Sizing = proto.DefaultSizing()
	}
	b, err := bus.Open(t.Context(), o)
	must(t, err)
	t.Cleanup(b.Close)
	return b
}

var must = fixture.Must

func event(slot string) *nats.Msg {
	return &nats.Msg{Subject: "grasp.event.1." + author + "." + slot, Data: []byte(`{}`)}
}

func TestBatchIsAtomicAndFenced(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	head := uint64(0)
	last, err := b.PublishBatch(t.Context(), []*nats.Msg{event("a"), event("b"), event("c")}, &head)
	if err != nil || last != 3 {
		t.Fatalf("last sequence %d, %v, want 3", last, err)
	}
	for _, batch := range [][]*nats.Msg{{event("d"), event("e")}, {event("d")}} {
		if _, err = b.PublishBatch(t.Context(), batch, &head); !bus.IsConflict(err) {
			t.Errorf("a batch of %d on an old head: %v, want a conflict", len(batch), err)
		}
	}
	// The second message of this chain expects the head as it is, behind another's message.
	before := uint64(2)
	if _, err = b.PublishChain(t.Context(), []*nats.Msg{event("d"), event("e")}, &before); !bus.IsConflict(err) {
		t.Errorf("a chain on an old head: %v, want a conflict", err)
	}
	if got, err := bus.LastSeq(t.Context(), b.JS, proto.StreamEvents); err != nil || got != 3 {
		t.Errorf("after the refusal the head is %d, %v; want 3", got, err)
	}
	if last, err = b.PublishBatch(t.Context(), []*nats.Msg{event("d")}, &last); err != nil || last != 4 {
		t.Errorf("a batch of one on the head: %d, %v", last, err)
	}
	if last, err = b.PublishChain(t.Context(), []*nats.Msg{event("e"), event("f")}, &last); err != nil || last != 6 {
		t.Errorf("a chain on the head: %d, %v", last, err)
	}
}

// TestProvisionIsIdempotentAndSurvivesRestart: what is there stays, and gets what differs in its
// declaration now.
func TestProvisionIsIdempotentAndSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir, sizing := t.TempDir(), proto.DefaultSizing()
	b := open(t, bus.Options{Dir: dir})
	_, err := b.PublishBatch(t.Context(), []*nats.Msg{event("a")}, nil)
	must(t, err)
	b.Close()
	sizing.RejectedMaxAge, sizing.ClaimWait = time.Hour, time.Minute
	again := open(t, bus.Options{Dir: dir, Listen: "127.0.0.1:0", Sizing: sizing})
	remote := open(t, bus.Options{URL: again.ClientURL(), Sizing: sizing})
	rejected, err := remote.JS.Stream(t.Context(), proto.StreamRejected)
	must(t, err)
	consumer, err := remote.JS.Consumer(t.Context(), proto.StreamUser, proto.ConsumerUser)
	must(t, err)
	head, err := bus.LastSeq(t.Context(), remote.JS, proto.StreamEvents)
	if err != nil || head != 1 || rejected.CachedInfo().Config.MaxAge != time.Hour || consumer.CachedInfo().Config.AckWait != time.Minute || !complete(t.Context(), remote) {
		t.Errorf("after the restart the head is %d, %v; rejections %+v, candidates %+v", head, err, rejected.CachedInfo().Config, consumer.CachedInfo().Config)
	}
}

func TestFullCandidateQueuePushesBack(t *testing.T) {
	t.Parallel()
	sizing := proto.DefaultSizing()
	sizing.CandidateBytes = 16 << 10
	b := open(t, bus.Options{Dir: t.TempDir(), Sizing: sizing})
	payload := make([]byte, 1<<10)
	// Each lane has its own room, however full the others are.
	for _, lane := range []proto.Lane{proto.LaneSyncHistoric, proto.LaneSyncLive, proto.LaneUser, proto.LaneRelease} {
		taken, err := 0, error(nil)
		for ; err == nil && taken < 100; taken++ {
			_, err = b.JS.Publish(t.Context(), lane.Subject(), payload)
		}
		if api, is := errors.AsType[*jetstream.APIError](err); !is || !strings.Contains(api.Description, "maximum bytes") || taken < 6 || taken > 17 {
			t.Errorf("%s took %d KiB of 16, and answers %v, want maximum bytes exceeded", lane, taken-1, err)
		}
	}
	if _, err := b.JS.Publish(t.Context(), proto.LaneSyncDaily.Subject(), payload); err == nil {
		t.Error("the lanes of older events do not share one bound")
	}
}

func TestTemporaryFolderGoesWithTheServer(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	b, err := bus.Open(t.Context(), bus.Options{Sizing: proto.Sizing{Replicas: 1, MemoryOnly: true, CandidateBytes: 1 << 20, WorkerTTL: time.Second}})
	must(t, err)
	if made, err := os.ReadDir(os.TempDir()); err != nil || len(made) != 1 {
		t.Fatalf("while it runs: %v, %v", made, err)
	}
	b.Close()
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("after it: %v, %v", left, err)
	}
}

// TestRedacted: neither passwords nor tokens are shown, nor anything of a URL that cannot be read.
func TestRedacted(t *testing.T) {
	t.Parallel()
	for urls, want := range map[string]string{
		"nats://u:secret@a:4222, nats://b": "nats://xxxxx@a:4222, nats://b", "tls://secret@a:4222": "tls://xxxxx@a:4222",
		"nats://u:secret@a:%zz": "(a URL that cannot be read)", "": "",
	} {
		if got := bus.Redacted(urls); got != want {
			t.Errorf("%q: %q, want %q", urls, got, want)
		}
	}
	if _, err := bus.Open(t.Context(), bus.Options{URL: "nats://user:secret@127.0.0.1:1"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
