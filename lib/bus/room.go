package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/disk"
	"tendril.dev/proto"
)

// ErrFull is the error of every write from the moment when the disk of the embedded server is full.
var ErrFull = errors.New("nothing can be stored now, because the disk is full; reads go on")

// ErrNotStored is the error of a write that NATS has not answered in time, though it answers
// otherwise. A server of its own whose disk is full does that.
var ErrNotStored = errors.New("NATS answers and does not store what it is given; its log says why, such as a full disk")

// IsFull reports whether an error says that nothing can be stored: for want of room on the disk or
// within what JetStream may store, or for a reason that NATS does not tell.
func IsFull(err error) bool {
	if errors.Is(err, ErrFull) || errors.Is(err, ErrNotStored) {
		return true
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == accountFull || api.ErrorCode == serverFull || api.ErrorCode == storageFull)
}

// Codes of JetStream's errors for want of room, for which the library has no names: in an account,
// and in a server when a message or a stream is added.
const accountFull, serverFull, storageFull jetstream.ErrorCode = 10002, 10023, 10047

// Disk says how much room the disk of a folder has. The zero value looks at the disk.
type Disk struct {
	IsFull  func(folder string) bool // nil: [disk.IsFull]
	HasRoom func(folder string) bool // nil: [disk.HasRoom]
}

func (d Disk) withDefaults() Disk {
	if d.IsFull == nil {
		d.IsFull = disk.IsFull
	}
	if d.HasRoom == nil {
		d.HasRoom = disk.HasRoom
	}
	return d
}

// room knows whether the embedded server can write to its disk:
//
//	writable --- no room, or a write has failed ---> full --- room again ---> the process begins again
//
// There is no way back from full: the server writes nothing more to a stream that it once could not
// write to. A disk that another process writes to fails before it is seen here to be full, so both
// signs are needed. Where the server is not ours it is always writable here.
type room struct {
	writable context.Context // ends, with [ErrFull] as its cause, when the disk is full
	setFull  context.CancelCauseFunc
	again    chan struct{} // closed when a disk that was full has room again
	disk     Disk
}

func newRoom(d Disk) room {
	r := room{again: make(chan struct{}), disk: d.withDefaults()}
	r.writable, r.setFull = context.WithCancelCause(context.Background())
	return r
}

// unstored is the error of a write that has failed by err: [ErrNotStored] where there was no answer
// in time, and NATS is there.
func (b *Bus) unstored(err error) error {
	late := []error{context.DeadlineExceeded, nats.ErrTimeout, jetstream.ErrAsyncPublishTimeout}
	if !slices.ContainsFunc(late, func(l error) bool { return errors.Is(err, l) }) {
		return err
	}
	if _, unknown := LastSeq(b.open, b.JS, proto.StreamEvents); unknown != nil {
		return err
	}
	return fmt.Errorf("%w (%w)", ErrNotStored, err)
}

// lookForRoom is how often it is looked how much room a disk has.
const lookForRoom = time.Second

// watch waits until a disk is full, or failed says so, and then until it has room again, or until
// ctx ends.
func (r *room) watch(ctx context.Context, dir string, log *slog.Logger) {
	tick := time.NewTicker(lookForRoom)
	defer tick.Stop()
	for !r.disk.IsFull(dir) && r.Full() == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.writable.Done():
		}
	}
	r.setFull(ErrFull)
	log.Error(ErrFull.Error(), "folder", dir)
	for !r.disk.HasRoom(dir) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	close(r.again)
}

// Full returns [ErrFull] if the disk of the embedded server is full, or was full since it began;
// nil: it can be written to.
func (r *room) Full() error { return context.Cause(r.writable) }

// RoomAgain is closed when a disk that was full has room again. The process should begin again.
func (r *room) RoomAgain() <-chan struct{} { return r.again }

// WhileWritable returns ctx, which also ends, with [ErrFull] as its cause, when the disk of the
// embedded server is full.
func (r *room) WhileWritable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.writable, func() { cancel(ErrFull) })
	return ctx, func() { stop(); cancel(nil) }
}
