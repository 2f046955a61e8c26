package bus

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// TestAFullDiskRefusesWrites: from the moment when a disk is seen to be full, or NATS says that a
// write has failed for it, every write is refused, and reads go on until there is room.
func TestAFullDiskRefusesWrites(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]string{
		"seen": "",
		"told": "JetStream failed to store a msg on stream '$G > GRASP_EVENTS': write 1.blk: no space left on device",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var full, room atomic.Bool
			b, err := Open(t.Context(), Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Disk: Disk{
				IsFull:  func(string) bool { return full.Load() },
				HasRoom: func(string) bool { return room.Load() },
			}})
			fixture.Must(t, err)
			t.Cleanup(b.Close)
			mark := []*nats.Msg{{Subject: proto.SubjectEventsMark, Data: []byte("{}")}}
			head, err := b.PublishBatch(t.Context(), mark, nil)
			fixture.Must(t, err)
			waiting, stop := b.WhileWritable(t.Context())
			defer stop()
			if failed == "" {
				full.Store(true)
			} else {
				serverLog{b.log(), "folder", b.lose, func() { b.setFull(ErrFull) }}.Errorf("%s", failed)
			}
			fixture.Receive(t, "what waits for a write ends", waiting.Done())
			if cause := context.Cause(waiting); !errors.Is(cause, ErrFull) {
				t.Errorf("it ended with %v", cause)
			}
			for _, msgs := range [][]*nats.Msg{mark, {mark[0], mark[0]}} {
				if _, err := b.PublishBatch(t.Context(), msgs, nil); !IsFull(err) {
					t.Errorf("a write of %d: %v", len(msgs), err)
				}
			}
			m, found, err := Last(t.Context(), b.JS, proto.StreamEvents, proto.SubjectEventsMark)
			if err != nil || !found || m.Seq != head {
				t.Errorf("a read: %+v, %t, %v", m, found, err)
			}
			select {
			case err := <-b.Lost():
				t.Errorf("the process should end: %v", err)
			case <-b.RoomAgain():
				t.Error("there is room, it says")
			default:
			}
			room.Store(true)
			fixture.Receive(t, "room is told", b.RoomAgain())
		})
	}
}

func (b *Bus) log() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestIsFull: the bounds of JetStream are told from errors that pass.
func TestIsFull(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		ErrFull: true, &jetstream.APIError{Code: 503, ErrorCode: 10023}: true, &jetstream.APIError{Code: 400, ErrorCode: 10002}: true,
		&jetstream.APIError{Code: 503, ErrorCode: 10008}: false, context.DeadlineExceeded: false,
	} {
		if IsFull(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}

// TestAWriteWithoutAnAnswer: where NATS answers otherwise, the error says what that means.
func TestAWriteWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b, err := Open(t.Context(), Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	fixture.Must(t, err)
	defer b.Close()
	_, err = b.Conn.SubscribeSync("silent") // in place of a stream that cannot store
	fixture.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = b.PublishChain(ctx, []*nats.Msg{{Subject: "silent"}}, nil)
	if !IsFull(err) || !errors.Is(err, ErrNotStored) {
		t.Errorf("no answer: %v", err)
	}
	if _, err := b.PublishChain(t.Context(), []*nats.Msg{{Subject: "nowhere"}}, nil); err == nil || IsFull(err) {
		t.Errorf("no stream: %v", err)
	}
}
