package indexcopy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

// errGone: the copy has ended. errBusy: another is being given.
var (
	errGone = errors.New("the copy has ended")
	errBusy = errors.New("another copy is being given")
)

// burst is how many bytes may go at once, whatever the rate.
const burst = 4 * proto.IndexChunk

// desk is where a giver gives one copy at a time.
type desk struct {
	Giver
	replica string // in subjects
	pace    *rate.Limiter
	begins  atomic.Pointer[proto.IndexLoan] // while a checkpoint is made; nil: none is

	mu     sync.Mutex
	closed bool
	out    *loan // nil: nobody is being given a copy
}

// loan is a copy that is being given.
type loan struct {
	proto.IndexCopy
	to    string
	dir   string    // of the checkpoint
	begun time.Time // when it was
	asked time.Time // when the taker asked last
	total int64     // bytes
	given int64     // bytes
}

func newDesk(g Giver) *desk {
	return &desk{Giver: g, replica: rand.Text(), pace: rate.NewLimiter(rate.Limit(g.Rate), burst)}
}

// offer says what could be given.
func (d *desk) offer() (proto.IndexOffer, error) {
	log, err := d.Index.Log()
	if err != nil {
		return proto.IndexOffer{}, err
	}
	return proto.IndexOffer{
		Replica: d.replica, Name: d.Name, Log: log, Format: eventdb.Format, Seq: d.Index.Seq(), Busy: d.busy(),
	}, nil
}

func (d *desk) busy() bool {
	if !d.mu.TryLock() { // a copy begins
		return true
	}
	defer d.mu.Unlock()
	return d.closed || d.out != nil
}

// lent says which copy is being given, without waiting for a checkpoint; nil: none is.
func (d *desk) lent() *proto.IndexLoan {
	if l := d.begins.Load(); l != nil {
		return l
	}
	if !d.mu.TryLock() {
		return nil // it begins or ends in this moment
	}
	defer d.mu.Unlock()
	l := d.out
	if l == nil {
		return nil
	}
	return &proto.IndexLoan{From: d.Name, For: l.to, Seq: l.Seq, Bytes: l.total, Given: l.given, Since: l.begun}
}

// begin makes a checkpoint for somebody.
func (d *desk) begin(ctx context.Context, ask proto.IndexAsk) (proto.IndexCopy, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || ctx.Err() != nil || d.out != nil {
		return proto.IndexCopy{}, errBusy
	}
	d.begins.Store(&proto.IndexLoan{From: d.Name, For: ask.For, Since: time.Now()})
	defer d.begins.Store(nil)
	l := &loan{IndexCopy: proto.IndexCopy{Copy: rand.Text(), Seq: d.Index.Seq()}, to: ask.For}
	var err error
	if l.dir, err = d.Index.Checkpoint(); err != nil {
		return proto.IndexCopy{}, err
	}
	d.out = l
	if l.Files, l.total, err = filesOf(l.dir); err != nil {
		d.letGo("its files cannot be listed")
		return proto.IndexCopy{}, err
	}
	l.begun = time.Now()
	l.asked = l.begun
	d.Log.Info("giving a copy of the event index", "to", l.to, "seq", l.Seq, "bytes", l.total, "files", len(l.Files))
	return l.IndexCopy, nil
}

// filesOf lists the files of a checkpoint that a copy needs.
func filesOf(dir string) (files []proto.IndexFile, total int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("list the files of a checkpoint: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, 0, fmt.Errorf("list the files of a checkpoint: %w", err)
		}
		if info.Size() == 0 && filepath.Ext(e.Name()) == ".log" {
			continue // a write-ahead log: an index has none
		}
		if !fileName.MatchString(e.Name()) {
			return nil, 0, fmt.Errorf("the index has a file that is not copied: %s", e.Name())
		}
		files = append(files, proto.IndexFile{Name: e.Name(), Bytes: info.Size()})
		total += info.Size()
	}
	return files, total, nil
}

// read returns a chunk with its checksum, when its turn has come.
func (d *desk) read(ctx context.Context, r proto.IndexRead) ([]byte, error) {
	path, offset, length, err := d.locate(r)
	if err != nil {
		return nil, err
	}
	if err := d.pace.WaitN(ctx, length); err != nil {
		return nil, fmt.Errorf("wait for a turn: %w", err)
	}
	message := make([]byte, sumBytes+length)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read a checkpoint: %w", err)
	}
	defer f.Close()
	if _, err := io.ReadFull(io.NewSectionReader(f, offset, int64(length)), message[sumBytes:]); err != nil {
		return nil, fmt.Errorf("read a checkpoint: %w", err)
	}
	d.Metrics.gave(length)
	return sealed(message), nil
}

// locate finds the chunk that is asked for.
func (d *desk) locate(r proto.IndexRead) (path string, offset int64, length int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.out
	if l == nil || l.Copy != r.Copy {
		return "", 0, 0, errGone
	}
	if r.File < 0 || r.File >= len(l.Files) {
		return "", 0, 0, fmt.Errorf("%w: file %d of %d", errBad, r.File, len(l.Files))
	}
	f := l.Files[r.File]
	offset, length, ok := chunkAt(f.Bytes, r.Chunk)
	if !ok {
		return "", 0, 0, fmt.Errorf("%w: chunk %d of %s", errBad, r.Chunk, f.Name)
	}
	l.asked = time.Now()
	l.given += int64(length)
	return filepath.Join(l.dir, f.Name), offset, length, nil
}

// end is told by the taker when it needs no more.
func (d *desk) end(r proto.IndexRead) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.out == nil || d.out.Copy != r.Copy {
		return errGone
	}
	d.letGo("")
	return nil
}

// look ends a copy whose taker has gone away, or is too slow for others to wait for it.
func (d *desk) look(now time.Time) {
	if !d.mu.TryLock() { // a copy begins
		return
	}
	defer d.mu.Unlock()
	switch l := d.out; {
	case l == nil:
	case now.Sub(l.asked) > idle:
		d.letGo("nothing more was asked for")
	case now.Sub(l.begun) > within(l.total):
		d.letGo("it took too long")
	}
}

// close ends the copy that is being given, and lets no other begin.
func (d *desk) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.out != nil {
		d.letGo("this process stops")
	}
}

// letGo removes the checkpoint. early says why the taker cannot have all of it; empty: it has. mu
// is held.
func (d *desk) letGo(early string) {
	l := d.out
	d.out = nil
	if err := d.Index.RemoveCheckpoint(l.dir); err != nil {
		d.Log.Warn("a copy of the event index is left on the disk until the next start", "error", err)
	}
	d.Metrics.ended(wayGiven, early == "")
	took := time.Since(l.begun).Round(time.Millisecond)
	if early != "" {
		d.Log.Warn("a copy of the event index was not given to its end", "to", l.to, "given", l.given, "bytes", l.total, "after", took, "reason", early)
		return
	}
	d.Log.Info("gave a copy of the event index", "to", l.to, "bytes", l.given, "took", took)
}
