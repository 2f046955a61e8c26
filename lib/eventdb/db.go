// Package eventdb is the projection of the log GRASP_EVENTS: a Pebble index that answers nostr
// filters and id scans (docs/architecture.md, Six ideas; NIP-01, NIP-09, NIP-40).
//
// The log is the truth and the index can be rebuilt from it at any time. So nothing here is synced
// to disk write by write: the index runs without a write-ahead log and keeps the sequence that it
// has reached in the same atomic batch as what it applied. After a crash it holds the state of some
// earlier sequence, whole, and follows the log on from there.
//
// The index repairs nothing. Damaged files, or a disk that is full, are told by [DB.Failed]; the
// process ends. Damaged files are removed when the index is opened again, and it is rebuilt.
package eventdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
)

// ErrNotFound: the index has no such event.
var ErrNotFound = errors.New("no such event")

// ErrClosed: the index was closed.
var ErrClosed = errors.New("the index is closed")

// Record is one event of the log.
type Record struct {
	Seq   uint64 // its sequence in the log
	Event *nostr.Event
	Raw   []byte // its JSON as logged; nil: made from Event
	// Removed is the id of an event that has left the log (proto.HeaderRemoved), and that has no
	// expiration. Event is nil then.
	Removed string
}

// DB is the index. It is safe for concurrent use.
type DB struct {
	pebble      *pebble.DB
	cache       *pebble.Cache
	lock        *pebble.Lock // of the folder
	dir         string       // empty: in memory
	now         func() nostr.Timestamp
	keepDeleted bool
	forgotten   string // see WithForgottenLog
	rebuilt     error
	failed      chan error

	follower atomic.Pointer[bus.Follower]

	mu     sync.Mutex // one writer: Apply, Advance, reset
	sieve  atomic.Pointer[sieve]
	change change // what Apply is about; guarded by mu

	stateMu     sync.Mutex // guards what follows
	seq         uint64
	count       uint64
	moved       chan struct{} // closed and replaced whenever seq changes
	subscribers []*subscriber

	users  atomic.Int64 // open views, and 1 until Close
	closed atomic.Bool
	gone   atomic.Bool // the files are closed
	broken atomic.Bool // see Failed
	opened atomic.Bool // Open has found no damage
}

type subscriber struct{ fn func([]Record) }

// Option sets something other than its default.
type Option func(*options)

type options struct {
	cacheBytes  int64
	keepDeleted bool
	now         func() nostr.Timestamp
	log         *slog.Logger
	forgotten   string
	memTable    uint64 // bytes that are gathered in memory before they are written out
	fs          vfs.FS // nil: the real one, or memory if there is no folder
}

// WithCache sets the size of Pebble's block cache, in bytes. Default 64 MiB.
func WithCache(bytes int64) Option { return func(o *options) { o.cacheBytes = bytes } }

// WithDeletionsDisrespected keeps the events that deletion requests name (policy.md, kind 5). The
// requests are stored as any event.
func WithDeletionsDisrespected(on bool) Option { return func(o *options) { o.keepDeleted = on } }

// WithForgottenLog names the log that the operator gives up, by the time at which it was made (RFC
// 3339): an index of it may begin again from a log without events. See [DB.LogGone].
func WithForgottenLog(made string) Option { return func(o *options) { o.forgotten = made } }

// WithClock sets the clock that decides which events have expired (NIP-40).
func WithClock(now func() nostr.Timestamp) Option { return func(o *options) { o.now = now } }

// WithLog sets where it is said why the process ends when Pebble cannot go on. Default: nowhere.
func WithLog(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// Open opens the index in the folder dir, making it if needed; an empty dir keeps it in memory.
// Damaged files are removed, and the index begins from nothing (see Rebuilt). While it is open no
// other process can open the folder.
func Open(dir string, opts ...Option) (*DB, error) {
	o := options{cacheBytes: 64 << 20, memTable: 16 << 20, now: nostr.Now, log: slog.New(slog.DiscardHandler)}
	for _, set := range opts {
		set(&o)
	}
	if o.fs == nil {
		if o.fs = vfs.Default; dir == "" {
			o.fs = vfs.NewMem()
		}
	}
	db := &DB{
		cache: newCache(o), dir: dir, now: o.now, keepDeleted: o.keepDeleted, forgotten: o.forgotten,
		failed: make(chan error, 1), moved: make(chan struct{}),
	}
	db.users.Store(1)
	if err := db.open(o); err != nil {
		db.cache.Unref()
		return nil, fmt.Errorf("open index in %q: %w", dir, err)
	}
	return db, nil
}

// open opens the files. Damaged ones are removed, and it begins with none.
func (db *DB) open(o options) (err error) {
	if err := o.fs.MkdirAll(db.dir, 0o755); err != nil {
		return err
	}
	if db.lock, err = pebble.LockDirectory(db.dir, o.fs); err != nil {
		return err
	}
	if aside := db.dir + asideSuffix; db.dir != "" {
		if _, missing := o.fs.Stat(aside); missing == nil {
			db.rebuilt = errors.New("damage was found while it was in use")
			err = o.fs.RemoveAll(aside)
		}
	}
	if err == nil {
		err = db.openFiles(o)
	}
	if isDamage(err) {
		db.rebuilt = err
		db.failed = make(chan error, 1) // what was told of the old files is past
		db.broken.Store(false)
		if err = db.clear(o.fs); err == nil {
			err = db.openFiles(o)
		}
	}
	if err != nil {
		return errors.Join(err, db.lock.Close())
	}
	return nil
}

// clear removes all files but the lock.
func (db *DB) clear(files vfs.FS) error {
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
func (db *DB) openFiles(o options) error {
	p, err := pebble.Open(db.dir, db.tuned(o))
	if err != nil {
		return err
	}
	r := reader{Reader: p}
	seq, badSeq := readUint(r, metaSeq)
	count, badCount := readUint(r, metaCount)
	sieve, badSieve := readSieve(p, int(count))
	if err := errors.Join(badSeq, badCount, badSieve); err != nil {
		_ = p.Close() // what it complains of is no news
		return err
	}
	db.pebble, db.seq, db.count = p, seq, count
	db.sieve.Store(sieve)
	db.opened.Store(true)
	return nil
}

// asideSuffix is what a folder is renamed to in which damage was found.
const asideSuffix = ".damaged"

// isDamage tells damaged files from a system that does not let us read or write them, which
// removing them would not help.
func isDamage(err error) bool {
	var system syscall.Errno
	return err != nil && (pebble.IsCorruptionError(err) || !errors.As(err, &system) || system == syscall.ENOENT)
}

// fail tells the process that the index cannot go on. Pebble's own goroutines call it.
func (db *DB) fail(err error, damaged bool) {
	db.broken.Store(true)
	if damaged {
		if db.dir != "" && db.opened.Load() {
			_ = os.Rename(db.dir, db.dir+asideSuffix) // else the same damage is found again
		}
		err = fmt.Errorf("files of the event index in %s are damaged; start again, and it is rebuilt from the log: %w", db.dir, err)
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
	return fmt.Sprintf("files of the event index in %s cannot be written (is the disk full?); make room and start again", db.dir)
}

// Failed returns an error when files of the index are damaged or cannot be written. The process
// must end: answers may be wrong from then on, and [DB.Apply] may block.
func (db *DB) Failed() <-chan error { return db.failed }

// Rebuilt says why the index began from nothing when it was opened; nil: it did not.
func (db *DB) Rebuilt() error { return db.rebuilt }

// Close writes out what is in memory and closes the index. From then on it takes no records and new
// views answer [ErrClosed]. Views that are still open go on, and the last of them closes the files.
// An index that has failed is left to the end of the process.
func (db *DB) Close() error {
	if db.broken.Load() {
		return nil // Apply may be blocked, and so might this be
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Swap(true) {
		return ErrClosed
	}
	if err := errors.Join(db.pebble.Flush(), db.leave()); err != nil {
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
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	return db.seq
}

// Subscribe calls fn with the events that each Apply stored, in log order, after they are visible
// to a new View. Events that were passed over (known, replaced by newer ones, deleted, ephemeral)
// are not among them. fn is called by the applying goroutine: it must not block or apply. After
// cancel has returned, a call that had already begun may still be running.
func (db *DB) Subscribe(fn func(recs []Record)) (cancel func()) {
	s := &subscriber{fn}
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	db.subscribers = append(slices.Clone(db.subscribers), s)
	return func() {
		db.stateMu.Lock()
		defer db.stateMu.Unlock()
		db.subscribers = slices.DeleteFunc(slices.Clone(db.subscribers), func(o *subscriber) bool { return o == s })
	}
}

// publish tells the subscribers, and then those who wait for the sequence.
func (db *DB) publish(seq, count uint64, stored []Record) {
	db.stateMu.Lock()
	subscribers := db.subscribers
	db.stateMu.Unlock()
	if len(stored) > 0 {
		for _, s := range subscribers {
			s.fn(stored)
		}
	}
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	db.seq, db.count = seq, count
	close(db.moved)
	db.moved = make(chan struct{})
}

// reset forgets everything, for a log that is not the one that was read.
func (db *DB) reset(log string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Load() {
		return ErrClosed
	}
	b := db.pebble.NewBatch()
	defer b.Close()
	err := errors.Join(b.DeleteRange([]byte{0}, []byte{0xff}, nil), b.Set(metaLog, []byte(log), nil), b.Commit(pebble.NoSync))
	if err != nil {
		return fmt.Errorf("reset index: %w", err)
	}
	db.sieve.Store(newSieve(0))
	db.publish(0, 0, nil)
	return nil
}

// logIdentity is which log the index was made from; empty: none yet.
func (db *DB) logIdentity() (string, error) {
	if !db.enter() {
		return "", ErrClosed
	}
	value, _, err := db.latest().get(metaLog)
	return string(value), errors.Join(err, db.leave())
}

func readUint(r getter, key []byte) (uint64, error) {
	value, found, err := r.get(key)
	if err != nil || !found {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("key %q holds %d bytes, want 8", key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}
