package eventdb

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/nbd-wtf/go-nostr"
)

// disk is in memory, and full or not.
type disk struct {
	vfs.FS
	full atomic.Bool
}

func newDisk() *disk {
	d := &disk{}
	d.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if d.full.Load() && strings.HasSuffix(op.Path, ".sst") && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpFileWrite) {
			return syscall.ENOSPC
		}
		return nil
	}))
	return d
}

func (d *disk) open(t *testing.T, log *slog.Logger) *DB {
	t.Helper()
	db, err := Open("index", func(o *options) { o.fs, o.memTable = d, 1<<20 }, WithLog(log))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// long is an event that fills memory quickly.
func long(seq uint64) []Record {
	ev := &nostr.Event{PubKey: fmt.Sprintf("%064x", 1), Kind: 1, CreatedAt: nostr.Timestamp(seq), Tags: nostr.Tags{}, Sig: strings.Repeat("0", 128)}
	for i := range 500 {
		ev.Content += fmt.Sprintf("%x ", uint64(i+1)*seq*0x9e3779b97f4a7c15) // packs badly
	}
	ev.ID = ev.GetID()
	return []Record{{Seq: seq, Event: ev}}
}

// TestFullDiskIsTold: while nothing can be written the index says so, the log hears of it once, and
// it goes on when there is room.
func TestFullDiskIsTold(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	disk := newDisk()
	db := disk.open(t, slog.New(slog.NewTextHandler(&log, nil)))
	if err := db.Troubled(); err != nil {
		t.Errorf("in trouble at once: %v", err)
	}
	disk.full.Store(true)
	const last = 1000 // more than memory holds
	applied := make(chan error, 1)
	go func() {
		var err error
		for seq := uint64(1); seq <= last && err == nil; seq++ {
			err = db.Apply(long(seq))
		}
		applied <- err
	}()
	within(t, func() bool { return errors.Is(db.Troubled(), syscall.ENOSPC) })
	disk.full.Store(false)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	within(t, func() bool { return db.Troubled() == nil })
	if db.Seq() != last {
		t.Errorf("at %d of %d", db.Seq(), last)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"cannot be written", "can be written again"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("the log says %q %d times:\n%.2000s", want, n, log.String())
		}
	}
}

// TestFullDiskDoesNotKeepTheIndexOpen: what cannot be written out is read from the log again.
func TestFullDiskDoesNotKeepTheIndexOpen(t *testing.T) {
	t.Parallel()
	disk := newDisk()
	db := disk.open(t, slog.New(slog.DiscardHandler))
	if err := db.Apply(long(1)); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	if err := db.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("closed: %v", err)
	}
	disk.full.Store(false)
	db = disk.open(t, slog.New(slog.DiscardHandler))
	if db.Seq() != 0 || db.Remade() != nil {
		t.Errorf("at %d, begun anew: %v", db.Seq(), db.Remade())
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestFullDiskAtTheStart is an error, and no damage: what is there is kept.
func TestFullDiskAtTheStart(t *testing.T) {
	t.Parallel()
	on := func(fs vfs.FS) Option { return func(o *options) { o.fs = fs } }
	memory := vfs.NewMem()
	full := errorfs.Wrap(memory, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	if db, err := Open("index", on(full)); !errors.Is(err, syscall.ENOSPC) || db != nil {
		t.Fatalf("a new index: %v, want %v", err, syscall.ENOSPC)
	}
	db, err := Open("index", on(memory))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Apply(long(1)), db.Close()); err != nil {
		t.Fatal(err)
	}
	if db, err := Open("index", on(full)); !errors.Is(err, syscall.ENOSPC) || db != nil {
		t.Fatalf("an index that there is: %v, want %v", err, syscall.ENOSPC)
	}
	if db, err = Open("index", on(memory)); err != nil || db.Seq() != 1 {
		t.Fatalf("with room again: at %d, %v; want 1", db.Seq(), err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestNothingToWriteIsNoTrouble: an index that nothing was applied to is closed without a word.
func TestNothingToWriteIsNoTrouble(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	db := newDisk().open(t, slog.New(slog.NewTextHandler(&log, nil)))
	if err := db.Close(); err != nil || log.Len() > 0 {
		t.Errorf("%v, %s", err, log.String())
	}
}

// TestTroubleIsToldOnceAKind: whatever the names of the files are.
func TestTroubleIsToldOnceAKind(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tr := newTrouble(slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 100 {
		tr.flushed(fmt.Errorf("%06d.sst: %w", i, syscall.ENOSPC))
		tr.compacted(nil) // some take no room
	}
	for i := range 100 {
		tr.flushed(fmt.Errorf("%06d.sst: %w", i, syscall.EIO))
	}
	if n := strings.Count(log.String(), "\n"); n != 2 || !errors.Is(tr.now(), syscall.EIO) {
		t.Errorf("%v, %d lines:\n%s", tr.now(), n, log.String())
	}
	tr.compacted(syscall.ENOSPC)
	tr.flushed(nil)
	if !errors.Is(tr.now(), syscall.ENOSPC) {
		t.Errorf("files cannot be merged, and the trouble is %v", tr.now())
	}
	select {
	case <-tr.raised():
	default:
		t.Error("trouble is not raised")
	}
	tr.compacted(nil)
	if tr.now() != nil {
		t.Error(tr.now())
	}
	select {
	case <-tr.raised():
		t.Error("past trouble is raised")
	default:
	}
}

func within(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
	}
}
