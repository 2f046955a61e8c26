// Package eventdb is the projection of the log GRASP_EVENTS: a Pebble index that answers nostr
// filters and id scans (docs/architecture.md, Six ideas; NIP-01, NIP-09, NIP-40).
//
// The log is the truth and the index can be rebuilt from it at any time. So nothing here is synced
// to disk write by write: the index runs without a write-ahead log and keeps the sequence that it
// has reached in the same atomic batch as what it applied. After a crash it holds the state of some
// earlier sequence, whole, and follows the log on from there.
package eventdb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nbd-wtf/go-nostr"
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
	dir         string       // the folder; empty: in memory
	fs          vfs.FS       // that the folder is in
	options     options
	damage      *damage
	trouble     *trouble
	remade      error
	now         func() nostr.Timestamp
	keepDeleted bool
	forgotten   string                // see WithForgottenLog
	mu          sync.Mutex            // one writer: Apply, Advance, reset
	sieve       atomic.Pointer[sieve] // changed by those who hold mu
	sums        atomic.Pointer[sums]
	fed         atomic.Uint64 // the last sequence that was given to Apply
	wanted      chan struct{} // of capacity 1: somebody waits for what is not applied yet
	change      change        // what Apply is about; guarded by mu
	stateMu     sync.Mutex    // guards what follows
	seq         uint64
	count       uint64
	moved       chan struct{} // closed and replaced whenever seq changes
	subscribers []*subscriber
	views       int // open
	closed      bool
}

type subscriber struct{ fn func([]Record) }

// Option sets something other than its default.
type Option func(*options)

type options struct {
	cacheBytes  int64
	keepDeleted bool
	now         func() nostr.Timestamp
	log         *slog.Logger
	forgotten   string // see WithForgottenLog
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

// WithLog sets where it is said that files cannot be written, and that they can be again. Default:
// nowhere.
func WithLog(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// Open opens the index in the folder dir, making it if needed; an empty dir keeps it in memory.
// Files that are damaged are removed, and the index begins anew (see Remade). While it is open
// nobody else can open the folder.
func Open(dir string, opts ...Option) (*DB, error) {
	o := options{cacheBytes: 64 << 20, memTable: 16 << 20, now: nostr.Now, log: slog.New(slog.DiscardHandler)}
	for _, set := range opts {
		set(&o)
	}
	switch {
	case o.fs != nil:
	case dir == "":
		o.fs = vfs.NewMem()
	default:
		o.fs = vfs.Default
	}
	db := &DB{
		cache: newCache(o), damage: newDamage(dir, o.fs), trouble: newTrouble(o.log), now: o.now, keepDeleted: o.keepDeleted, moved: make(chan struct{}),
		forgotten: o.forgotten, wanted: make(chan struct{}, 1), dir: dir, fs: o.fs, options: o,
	}
	if err := db.open(dir, o); err != nil {
		db.cache.Unref()
		return nil, fmt.Errorf("open index in %q: %w", dir, err)
	}
	return db, nil
}

// open opens the files, and begins anew if they are damaged.
func (db *DB) open(dir string, o options) error {
	if err := o.fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := pebble.LockDirectory(dir, o.fs)
	if err != nil {
		return err
	}
	if err := tryWriting(o.fs, dir); err != nil {
		return errors.Join(err, lock.Close())
	}
	if db.remade = db.damage.marked(); db.remade == nil {
		if err = db.openFiles(dir, o, lock); isDamage(err) {
			db.remade = err
		}
	}
	if db.remade != nil {
		db.damage = newDamage(dir, o.fs) // what was told about the old files is past
		if err = db.damage.clear(); err == nil {
			err = db.openFiles(dir, o, lock)
		}
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	db.lock = lock
	return nil
}

// openFiles opens what is there and reads what is kept in memory. After an error nothing is open.
func (db *DB) openFiles(dir string, o options, lock *pebble.Lock) error {
	p, err := pebble.Open(dir, tuned(o, db.cache, lock, db.damage, db.trouble))
	if err != nil {
		return err
	}
	seq, err := readUint(p, metaSeq)
	count, badCount := readUint(p, metaCount)
	if err = errors.Join(err, badCount); err == nil {
		err = db.readMemory(p, int(count))
	}
	if err != nil {
		_ = p.Close() // what it complains of is no news
		return err
	}
	db.pebble = p
	db.change.batch = nil // it belonged to the files before
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	db.seq, db.count = seq, count
	return nil
}

// readMemory reads what is kept in memory besides, of an index with so many events.
func (db *DB) readMemory(p *pebble.DB, count int) error {
	var reading sync.WaitGroup
	var badSieve, badSums error
	reading.Go(func() {
		var s *sieve
		s, badSieve = readSieve(p, count)
		db.sieve.Store(s)
	})
	reading.Go(func() {
		var s *sums
		s, badSums = readSums(p)
		db.sums.Store(s)
	})
	reading.Wait()
	return errors.Join(badSieve, badSums)
}

// Close writes out what is in memory and closes the index. If it cannot be written out the index is
// closed without it, and reads it from the log again when it is opened the next time. From then on
// the index takes no records and new views answer [ErrClosed]. Views that are still open go on, and
// the last of them closes the files.
func (db *DB) Close() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.isClosed() {
		return ErrClosed
	}
	err := db.flush()
	db.stateMu.Lock()
	db.closed = true
	last := db.views == 0
	db.stateMu.Unlock()
	if last {
		err = errors.Join(err, db.closeFiles())
	}
	if err != nil {
		return fmt.Errorf("close index: %w", err)
	}
	return nil
}

// flush writes out what is in memory, unless files cannot be written: Pebble would try that for
// ever.
func (db *DB) flush() error {
	if err := db.Troubled(); err != nil {
		return err
	}
	done, err := db.pebble.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-db.trouble.raised():
		return db.Troubled()
	}
}

func (db *DB) isClosed() bool {
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	return db.closed
}

func (db *DB) closeFiles() error {
	defer db.cache.Unref()
	return errors.Join(db.pebble.Close(), db.lock.Close())
}

// enter counts a view; false if the index is closed.
func (db *DB) enter() bool {
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	if db.closed {
		return false
	}
	db.views++
	return true
}

// leave is called by a view that has closed its snapshot.
func (db *DB) leave() error {
	db.stateMu.Lock()
	db.views--
	last := db.closed && db.views == 0
	db.stateMu.Unlock()
	if last {
		return db.closeFiles()
	}
	return nil
}

// Seq is the last log sequence applied and told to the subscribers. A view may be ahead of it for a
// moment.
func (db *DB) Seq() uint64 {
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	return db.seq
}

// WaitFor waits until the index has applied the log up to seq and has told its subscribers.
func (db *DB) WaitFor(ctx context.Context, seq uint64) error {
	if db.Seq() < seq {
		select {
		case db.wanted <- struct{}{}:
		default:
		}
	}
	return db.reach(ctx, seq)
}

// reach is WaitFor for those who see to it themselves that the log is read.
func (db *DB) reach(ctx context.Context, seq uint64) error {
	for {
		db.stateMu.Lock()
		reached, moved := db.seq, db.moved
		db.stateMu.Unlock()
		if reached >= seq {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for the index to reach %d, it is at %d: %w", seq, reached, ctx.Err())
		}
	}
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

// publish tells the subscribers, and makes a new sequence known when they have heard.
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
	if db.isClosed() {
		return ErrClosed
	}
	b := db.pebble.NewBatch()
	defer b.Close()
	if err := b.DeleteRange([]byte{0}, []byte{0xff}, nil); err != nil {
		return fmt.Errorf("reset index: %w", err)
	}
	if err := b.Set(metaLog, []byte(log), nil); err != nil {
		return fmt.Errorf("reset index: %w", err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("reset index: %w", err)
	}
	db.sieve.Store(newSieve(0))
	db.fed.Store(0)
	db.sums.Store(newSums())
	db.publish(0, 0, nil)
	return nil
}

// logIdentity is which log the index was made from; empty: none yet.
func (db *DB) logIdentity() (string, error) {
	if !db.enter() {
		return "", ErrClosed
	}
	identity, err := readLogIdentity(db.pebble)
	return identity, errors.Join(err, db.leave())
}

func readLogIdentity(r getter) (string, error) {
	v, closer, err := r.Get(metaLog)
	if errors.Is(err, pebble.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the index's log identity: %w", err)
	}
	defer closer.Close()
	return string(v), nil
}

func readUint(r getter, key []byte) (uint64, error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer closer.Close()
	if len(v) != 8 {
		return 0, fmt.Errorf("key %q holds %d bytes, want 8", key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
