// Package eventdb is the projection of the log GRASP_EVENTS: a Pebble index that answers nostr
// filters and id scans (docs/architecture.md, Six ideas; NIP-01, NIP-09, NIP-40).
//
// The log is the truth and the index can be rebuilt from it at any time. So nothing here is synced
// to disk write by write: the index runs without a write-ahead log and keeps the sequence that it
// has reached in the same atomic batch as what it applied. After a crash it holds the state of some
// earlier sequence, whole, and follows the log on from there.
//
// The index repairs nothing. Damaged files, or a disk that fails, are told by [DB.Failed]; the
// process ends. Damaged files are removed when the index is opened again, and it is rebuilt. A disk
// that is full is waited for: reads go on.
package eventdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/disk"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

var (
	// ErrNotFound is the answer to a look-up of an event that is not stored, or has expired. Nothing
	// is wrong with the index.
	ErrNotFound = errors.New("no such event")
	// ErrClosed is what every call gets after [DB.Close]. Nothing of the call was done.
	ErrClosed = errors.New("the index is closed")
	// ErrInUse is the error of [Lock] while a process has the index open. The folder is as it was.
	ErrInUse = errors.New("the index is in use")
)

// Record is one event of the log.
type Record struct {
	Seq   uint64 // its sequence in the log
	Event *nostr.Event
	Raw   []byte // its JSON as logged; nil: made from Event
	// Removed is the id of an event that has left the log (proto.HeaderRemoved). Event is nil then,
	// and Subject is the place in the log that it had.
	Removed, Subject string
	// Floors are the places of deleted versions, of a deletion request (proto.HeaderFloor).
	Floors []proto.Floor
	// Request is what was decided of a deletion request or a request to vanish
	// (proto.HeaderRequest).
	Request proto.Request
	Trace   string    // W3C trace context; empty: none
	At      time.Time // of its commit
}

// DB is the index. It is safe for concurrent use.
type DB struct {
	pebble    *pebble.DB
	cache     *pebble.Cache
	lock      *pebble.Lock // of the folder
	keyFilter *keyFilter
	dir       string // empty: in memory
	opts      Options
	failed    chan error
	rebuilt   error
	broken    atomic.Bool // see Failed
	lacks     atomic.Bool // an announcement that others' events may hang on was taken away

	follower atomic.Pointer[bus.Follower]

	mu          sync.Mutex // one writer; guards the next three too
	takes       bool       // what is left of authors who have vanished is being taken away
	taking      sync.WaitGroup
	subscribers []func([]Record)
	bans        Bans                   // nil: none
	hidden      atomic.Pointer[hidden] // never nil

	seqMu sync.Mutex
	seq   uint64        // applied and told to the subscribers
	moved chan struct{} // closed and replaced whenever seq changes

	opened atomic.Bool  // a full disk is waited for from now on
	full   atomic.Bool  // the disk is, and is waited for
	users  atomic.Int64 // open views, and 1 until Close
	closed atomic.Bool
	gone   atomic.Bool // the files are closed
}

// Options say how an index is opened. The zero value may be used.
type Options struct {
	// Cache is the size of Pebble's block cache in bytes; 0: 64 MiB.
	Cache int64
	// KeepDeleted keeps the events that deletion requests (kind 5) and requests to vanish (kind 62)
	// ask for. The requests are stored as any event. false: what they ask for leaves the index and
	// does not come back.
	KeepDeleted bool
	// ForgottenLog names logs that the operator gives up, by the times at which they were made (RFC
	// 3339): see [DB.LogGone].
	ForgottenLog []string
	// Log is told when damaged files are removed, and why the process ends when Pebble cannot go on.
	// nil: nothing is told.
	Log *slog.Logger
	// Now is the clock that decides which events have expired (NIP-40); nil: that of the machine.
	Now func() nostr.Timestamp

	memTable uint64 // bytes that are gathered in memory before they are written out
	files    vfs.FS
	hasRoom  func(dir string) bool // whether a disk that was full has room again
}

// withDefaults fills in what is not set.
func (o Options) withDefaults(dir string) Options {
	if o.Cache == 0 {
		o.Cache = 64 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = nostr.Now
	}
	if o.hasRoom == nil {
		o.hasRoom = disk.HasRoom
	}
	if o.memTable == 0 {
		o.memTable = 16 << 20
	}
	if o.files == nil {
		if o.files = vfs.Default; dir == "" {
			o.files = vfs.NewMem()
		}
	}
	return o
}

// Open opens the index in the folder dir, making it if needed; an empty dir keeps it in memory.
// Damaged files are removed, and the index begins from nothing. While it is open no other process
// can open the folder.
func Open(dir string, o Options) (*DB, error) {
	db := &DB{dir: dir, opts: o.withDefaults(dir), moved: make(chan struct{})}
	// Pebble takes the memory of what is gathered off the cache, which would leave none of it to a
	// busy index, so that is added.
	db.cache = pebble.NewCache(db.opts.Cache + 2*int64(db.opts.memTable))
	db.opts.files = vfs.OnDiskFull(db.opts.files, db.awaitRoom)
	db.users.Store(1)
	db.hidden.Store(&hidden{})
	if err := db.open(); err != nil {
		db.cache.Unref()
		return nil, fmt.Errorf("open index in %q: %w", dir, err)
	}
	return db, nil
}

func (db *DB) open() (err error) {
	files := db.opts.files
	if err := files.MkdirAll(db.dir, 0o755); err != nil {
		return err
	}
	if db.lock, err = pebble.LockDirectory(db.dir, files); err != nil {
		return err
	}
	if _, missing := files.Stat(files.PathJoin(db.dir, damagedMark)); missing == nil {
		err = errDamaged
	} else {
		err = db.openFiles()
	}
	if isDamage(err) {
		db.rebuilt = err
		db.opts.Log.Warn("the event index was damaged and is rebuilt from the log", "folder", db.dir, "error", err)
		if err = db.clear(); err == nil {
			err = db.openFiles()
		}
	}
	if err != nil {
		return errors.Join(err, db.lock.Close())
	}
	return nil
}

// clear removes all files but the lock.
func (db *DB) clear() error {
	files := db.opts.files
	names, err := files.List(db.dir)
	for _, name := range names {
		if name != "LOCK" {
			err = errors.Join(err, files.RemoveAll(files.PathJoin(db.dir, name)))
		}
	}
	if err != nil {
		return fmt.Errorf("remove the damaged index: %w", err)
	}
	return nil
}

// openFiles opens what is there and reads what is kept in memory. After an error nothing is open.
func (db *DB) openFiles() error {
	db.failed = make(chan error, 1)
	db.broken.Store(false)
	p, err := pebble.Open(db.dir, db.tuned())
	if err != nil {
		return err
	}
	seq, _, badSeq := readUint(reader{Reader: p}, metaSeq)
	filter, badFilter := readKeyFilter(p)
	badGone := reader{Reader: p}.each([]byte{tableGone}, func([]byte, []byte) { db.lacks.Store(true) })
	rest := false
	badRest := reader{Reader: p}.each([]byte{tableRest}, func([]byte, []byte) { rest = true })
	if err := errors.Join(badSeq, badFilter, badGone, badRest); err != nil {
		_ = p.Close() // what it complains of is no news
		return err
	}
	db.pebble, db.keyFilter, db.seq = p, filter, seq
	db.opened.Store(true)
	if rest { // when the process ended
		db.takeRest()
	}
	return nil
}

// damagedMark is the file in a folder in which damage was found while it was in use.
const damagedMark = "DAMAGED"

var errDamaged = errors.New("damage was found while it was in use")

// isDamage tells damaged files from a system that does not let us read or write them, which
// removing them would not help.
func isDamage(err error) bool {
	var system syscall.Errno
	return err != nil && (pebble.IsCorruptionError(err) || !errors.As(err, &system) || system == syscall.ENOENT)
}

// lookForRoom is how often it is looked whether a disk that was full has room again.
const lookForRoom = 200 * time.Millisecond

// awaitRoom is called by Pebble's own goroutines when a file cannot be written because the disk is
// full, and returns when it may be tried again. What is applied meanwhile stays in memory, and
// readers go on. The start waits for nothing: it fails with a sentence.
func (db *DB) awaitRoom() {
	if !db.opened.Load() {
		return
	}
	db.full.Store(true)
	defer db.full.Store(false)
	db.opts.Log.Error("the disk of the event index is full; reads go on, and it is written again when there is room",
		"folder", db.dir)
	for !db.opts.hasRoom(db.dir) {
		time.Sleep(lookForRoom)
	}
}

// fail tells the process that the index cannot go on. Pebble's own goroutines call it.
func (db *DB) fail(err error, damaged bool) {
	db.broken.Store(true)
	if damaged {
		if db.dir != "" {
			_ = os.WriteFile(filepath.Join(db.dir, damagedMark), nil, 0o600) // else the same damage is found again
		}
		err = fmt.Errorf("files of the event index in %s are damaged; start again, and it is rebuilt from the log: %w",
			db.dir, err)
	} else {
		err = fmt.Errorf("%s: %w", db.unwritable(), err)
	}
	select {
	case db.failed <- err:
	default:
	}
}

// unwritable says what to do when files cannot be written.
func (db *DB) unwritable() string {
	return fmt.Sprintf("files of the event index in %s cannot be written; see to its disk and start again",
		db.dir)
}

// Failed returns an error when files of the index are damaged or cannot be written. The process
// must end: answers may be wrong from then on, and [DB.Apply] may block.
func (db *DB) Failed() <-chan error { return db.failed }

// Rebuilt says why the index began from nothing when it was opened; nil: it did not.
func (db *DB) Rebuilt() error { return db.rebuilt }

// Close writes out what is in memory and closes the index. From then on it takes no records and new
// views answer [ErrClosed]. Views that are still open go on, and the last of them closes the files.
// An index that has failed, or whose disk is full, is left to the end of the process: what it could
// not write is read from the log again.
func (db *DB) Close() error {
	if db.broken.Load() || db.full.Load() {
		return nil // Apply may be blocked, and so might this be
	}
	db.mu.Lock()
	again := db.closed.Swap(true) // nothing is applied from here on
	db.mu.Unlock()
	if again {
		return ErrClosed
	}
	db.taking.Wait()
	flushed, err := db.pebble.AsyncFlush()
	for err == nil && flushed != nil {
		select {
		case <-flushed:
			flushed = nil
		case <-time.After(lookForRoom):
			if db.full.Load() {
				return nil
			}
		}
	}
	if err := errors.Join(err, db.leave()); err != nil {
		return fmt.Errorf("close index: %w", err)
	}
	return nil
}

// enter counts a view; false if the index is closed.
func (db *DB) enter() bool {
	db.users.Add(1)
	if db.closed.Load() {
		_ = db.leave() // Close, or a view before this one, has reported what there is to report
		return false
	}
	return true
}

// leave is called by a view that has closed its snapshot. The last one closes the files.
func (db *DB) leave() error {
	if db.users.Add(-1) > 0 || db.gone.Swap(true) {
		return nil
	}
	defer db.cache.Unref()
	return errors.Join(db.pebble.Close(), db.lock.Close())
}

// Seq is the last log sequence applied and told to the subscribers. A view may be ahead of it for a
// moment.
func (db *DB) Seq() uint64 {
	seq, _ := db.reached()
	return seq
}

// reached is the sequence, and a channel that is closed when it changes.
func (db *DB) reached() (seq uint64, moved <-chan struct{}) {
	db.seqMu.Lock()
	defer db.seqMu.Unlock()
	return db.seq, db.moved
}

func (db *DB) setSeq(seq uint64) {
	db.seqMu.Lock()
	defer db.seqMu.Unlock()
	db.seq = seq
	close(db.moved)
	db.moved = make(chan struct{})
}

// Subscribe calls fn with the events that each Apply stores from now on, in log order, after they
// are visible to a new View. Events that were passed over (known, replaced by newer ones, deleted,
// ephemeral) are not among them. fn is called by the applying goroutine: it must not block or
// apply.
func (db *DB) Subscribe(fn func(recs []Record)) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.subscribers = append(db.subscribers, fn)
}

// reset forgets everything, for a log that is not the one that was read.
func (db *DB) reset(rules, made string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Load() {
		return ErrClosed
	}
	b := db.pebble.NewBatch()
	defer b.Close()
	err := errors.Join(b.DeleteRange([]byte{0}, []byte{0xff}, nil), b.Set(metaRules, []byte(rules), nil),
		b.Set(metaLog, []byte(made), nil),
		b.Commit(pebble.NoSync))
	if err != nil {
		return fmt.Errorf("reset index: %w", err)
	}
	db.setSeq(0)
	return nil
}

func readUint(r reader, key []byte) (n uint64, found bool, err error) {
	value, found, err := r.get(key)
	if err != nil || !found {
		return 0, false, err
	}
	if len(value) != 8 {
		return 0, false, fmt.Errorf("key %x holds %d bytes, want 8", key, len(value))
	}
	return binary.BigEndian.Uint64(value), true, nil
}

// Lock keeps every other process from opening the index in a folder, until unlock is called. The
// folder is made if it is not there.
func Lock(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock index: %w", err)
	}
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if errors.Is(err, syscall.EAGAIN) || err != nil && strings.Contains(err.Error(), "lock held by current process") {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("lock index: %w", err)
	}
	return lock.Close, nil
}

// tuned is how Pebble keeps the index. Most of what applying an event costs is Pebble's flushing
// and merging of files, so all of this is about doing that less often and in larger pieces.
func (db *DB) tuned() *pebble.Options {
	po := &pebble.Options{
		FS: db.opts.files, Cache: db.cache, Lock: db.lock,
		EventListener: &pebble.EventListener{
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				db.fail(fmt.Errorf("%s: %w", info.Path, info.Details), true)
			},
			BackgroundError: func(err error) {
				// A flush that had nothing to write fails so; Pebble has no name for it.
				if err.Error() != "pebble: empty table" && !errors.Is(err, syscall.ENOSPC) { // which is tried again
					db.fail(err, pebble.IsCorruptionError(err))
				}
			},
		},
		DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: pebbleLog{db},
		// One is filled while the last one is written out, so twice this is the most memory that
		// they take.
		MemTableSize: db.opts.memTable,
		// More files are merged at once, so that each entry is merged fewer times; a query
		// meanwhile looks into twice as many as by default.
		L0CompactionThreshold: 8,
		// The index is not synced write by write, and a large file need not be either.
		BytesPerSync: 8 << 20,
	}
	for i := range po.Levels {
		// What is read is mostly read in order, and each block costs a system call whenever files
		// are merged.
		po.Levels[i].BlockSize = 32 << 10
	}
	return po
}

// pebbleLog passes over Pebble's notes on flushes and compactions. What fails comes back as an
// error, or ends the process.
type pebbleLog struct{ db *DB }

func (pebbleLog) Infof(string, ...any)  {}
func (pebbleLog) Errorf(string, ...any) {}

func (l pebbleLog) Fatalf(format string, args ...any) {
	l.db.opts.Log.Error(l.db.unwritable(), "error", fmt.Sprintf(format, args...))
	os.Exit(1)
}
