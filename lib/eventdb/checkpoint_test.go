package eventdb

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/nbd-wtf/go-nostr"
)

const someLog = "layout 3, deletions disrespected false, log of 2026-01-01T00:00:00Z"

// filled is an index in dir of fs, of someLog, with n events whose created_at is their sequence.
func filled(t *testing.T, fs vfs.FS, dir, of string, n int) *DB {
	t.Helper()
	db, err := Open(dir, onFS(fs), WithMemTable(4<<20))
	if err != nil {
		t.Fatal(err)
	}
	if err := db.reset(of); err != nil {
		t.Fatal(err)
	}
	fill(t, db, n)
	return db
}

func onFS(fs vfs.FS) Option { return func(o *options) { o.fs = fs } }

func fill(t *testing.T, db *DB, n int) {
	t.Helper()
	var recs []Record
	for seq := int(db.Seq()) + 1; len(recs) < n; seq++ {
		recs = append(recs, Record{Seq: uint64(seq), Event: made(seq, 1, nostr.Timestamp(seq), nostr.Tag{"t", "x"})})
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
}

// whole: the index holds exactly the events up to its sequence, by every way to them.
func whole(t *testing.T, db *DB) {
	t.Helper()
	v := db.View()
	defer v.Close()
	seq := db.Seq()
	if n, err := v.Len(); err != nil || n != seq {
		t.Fatalf("%d events at sequence %d, %v", n, seq, err)
	}
	for _, f := range []nostr.Filter{{}, {Kinds: []int{1}}, {Tags: nostr.TagMap{"t": {"x"}}}} {
		found := uint64(0)
		for _, err := range v.Query(t.Context(), f) {
			if err != nil {
				t.Fatal(err)
			}
			found++
		}
		if found != seq {
			t.Fatalf("%s finds %d of %d", f.String(), found, seq)
		}
	}
	for n := range int(seq) {
		if known, err := v.Has(made(n+1, 1, 1).ID); err != nil || !known {
			t.Fatalf("event %d: %t, %v", n+1, known, err)
		}
	}
	if err := db.CheckSums(); err != nil {
		t.Fatal(err)
	}
}

// hand copies the files of one folder to another, synced.
func hand(t *testing.T, from vfs.FS, dir string, to vfs.FS, into string) {
	t.Helper()
	names, err := from.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		src, err := from.Open(from.PathJoin(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		dst, err := to.Create(to.PathJoin(into, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(dst, src)
		if err = errors.Join(err, dst.Sync(), dst.Close(), src.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// copied gathers a checkpoint of one index in another.
func copied(t *testing.T, from, to *DB) {
	t.Helper()
	given, err := from.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	taken, err := to.Gather()
	if err != nil {
		t.Fatal(err)
	}
	hand(t, from.fs, given, to.fs, taken)
	if err := from.RemoveCheckpoint(given); err != nil {
		t.Fatal(err)
	}
}

func left(t *testing.T, db *DB) (names []string) {
	t.Helper()
	all, err := db.fs.List(db.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if name == takenFolder || name == damageMark || strings.HasPrefix(name, givenPrefix) {
			names = append(names, name)
		}
	}
	return names
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	other := strings.Replace(someLog, "2026", "2025", 1)
	for name, c := range map[string]struct {
		had, of         string
		atLeast, atMost uint64
		spoil           func(t *testing.T, db *DB)
		want            uint64 // sequence; 0: refused
	}{
		"into an empty index":         {"", someLog, 300, 300, nil, 300},
		"in place of an older one":    {"some", someLog, 300, 400, nil, 300},
		"of another log":              {"some", other, 300, 300, nil, 0},
		"of no log":                   {"some", "", 300, 300, nil, 0},
		"ahead of the log":            {"some", someLog, 1, 299, nil, 0},
		"behind what was promised":    {"some", someLog, 301, 400, nil, 0},
		"a table is missing":          {"some", someLog, 300, 300, without(".sst"), 0},
		"a table is cut short":        {"some", someLog, 300, 300, short(".sst"), 0},
		"the manifest is missing":     {"some", someLog, 300, 300, without("MANIFEST-"), 0},
		"the manifest is cut short":   {"some", someLog, 300, 300, short("MANIFEST-"), 0},
		"the marker is missing":       {"some", someLog, 300, 300, without("marker.manifest"), 0},
		"nothing was gathered":        {"some", someLog, 300, 300, without(""), 0},
		"it has a mark of damage":     {"some", someLog, 300, 300, with(damageMark), 0},
		"it brings a lock":            {"some", someLog, 300, 300, with(lockFile), 0},
		"a file nobody asked for":     {"some", someLog, 300, 300, with("999999.sst"), 300},
		"the options are cut short":   {"some", someLog, 300, 300, short("OPTIONS-"), 300},
		"a table's bytes are flipped": {"some", someLog, 300, 300, flipped(".sst"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := filled(t, vfs.NewMem(), "from", c.of, 300)
			defer from.Close()
			to := filled(t, vfs.NewMem(), "to", someLog, 0)
			if c.had != "" {
				fill(t, to, 20)
			}
			copied(t, from, to)
			if c.spoil != nil {
				c.spoil(t, to)
			}
			err := to.Adopt(c.atLeast, c.atMost)
			if (err == nil) != (c.want > 0) || err != nil && !errors.Is(err, ErrNotAdopted) {
				t.Fatalf("%v, want %d", err, c.want)
			}
			if to.Seq() != c.want {
				t.Fatalf("at %d, want %d", to.Seq(), c.want)
			}
			if log, err := to.Log(); err != nil || log != someLog {
				t.Errorf("bound to %q, %v", log, err)
			}
			whole(t, to)
			fill(t, to, 50) // it goes on from there
			whole(t, to)
			select {
			case err := <-to.Damaged():
				t.Errorf("damaged: %v", err)
			default:
			}
			if names := left(t, to); len(names) > 0 {
				t.Errorf("left: %q", names)
			}
			if err := to.Close(); err != nil {
				t.Fatal(err)
			}
			again, err := Open("to", onFS(to.fs))
			if err != nil || again.Seq() != c.want+50 || again.Remade() != nil {
				t.Fatalf("opened again: %v, %v", again.Remade(), err)
			}
			whole(t, again)
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Each of these spoils the gathered files whose names have a part.

func each(part string, do func(t *testing.T, fs vfs.FS, path string)) func(t *testing.T, db *DB) {
	return func(t *testing.T, db *DB) {
		taken := db.fs.PathJoin(db.dir, takenFolder)
		names, err := db.fs.List(taken)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.Contains(name, part) {
				do(t, db.fs, db.fs.PathJoin(taken, name))
			}
		}
	}
}

func without(part string) func(t *testing.T, db *DB) {
	return each(part, func(t *testing.T, fs vfs.FS, path string) {
		if err := fs.Remove(path); err != nil {
			t.Fatal(err)
		}
	})
}

func short(part string) func(t *testing.T, db *DB) {
	return each(part, func(t *testing.T, fs vfs.FS, path string) {
		b := contents(t, fs, path)
		write(t, fs, path, b[:len(b)/2])
	})
}

func flipped(part string) func(t *testing.T, db *DB) {
	return each(part, func(t *testing.T, fs vfs.FS, path string) {
		b := contents(t, fs, path)
		for i := range b[:len(b)-100] {
			b[i] ^= 0xff
		}
		write(t, fs, path, b)
	})
}

func with(name string) func(t *testing.T, db *DB) {
	return func(t *testing.T, db *DB) {
		write(t, db.fs, db.fs.PathJoin(db.dir, takenFolder, name), []byte("x"))
	}
}

func contents(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestKilledWhileAdopting stops the machine before every step of the exchange of files. What is
// found is the old index, the copy, or an empty one that says so; never a mixture.
func TestKilledWhileAdopting(t *testing.T) {
	t.Parallel()
	from := filled(t, vfs.NewMem(), "from", someLog, 200)
	defer from.Close()
	memory, rnd := vfs.NewCrashableMem(), rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex // Pebble removes files beside
	var crashed []*vfs.MemFS
	clone := func() {
		mu.Lock()
		defer mu.Unlock()
		for _, unsynced := range []int{0, 50, 100} {
			crashed = append(crashed, memory.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unsynced, RNG: rnd}))
		}
	}
	var watching atomic.Bool
	watched := errorfs.Wrap(memory, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if watching.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			clone()
		}
		return nil
	}))
	to := filled(t, watched, "to", someLog, 20)
	if err := to.Settle(); err != nil {
		t.Fatal(err)
	}
	copied(t, from, to)
	watching.Store(true)
	if err := to.Adopt(200, 200); err != nil {
		t.Fatal(err)
	}
	watching.Store(false)
	adopted := len(crashed)
	clone()
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for n, fs := range crashed {
		db, err := Open("to", onFS(fs))
		if err != nil {
			t.Fatalf("after crash %d: %v", n, err)
		}
		switch seq := db.Seq(); {
		case n >= adopted && seq != 200:
			t.Errorf("after a crash when all was done: at %d, made anew: %v", seq, db.Remade())
		case seq == 20 && db.Remade() == nil:
			found["old"]++
		case seq == 200 && db.Remade() == nil:
			found["new"]++
		case seq == 0 && db.Remade() != nil:
			found["empty"]++
		default:
			t.Errorf("after crash %d: at %d, made anew: %v", n, seq, db.Remade())
		}
		whole(t, db)
		if names := left(t, db); len(names) > 0 {
			t.Errorf("after crash %d: left %q", n, names)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(len(crashed), found)
	if found["old"] == 0 || found["empty"] == 0 || found["new"] == 0 {
		t.Errorf("found %v: the crashes did not come in every phase", found)
	}
}

// TestKilledWhileGathering: a copy that was not gathered to its end is not taken for one, nor is a
// checkpoint that somebody was reading.
func TestKilledWhileGathering(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	from := filled(t, vfs.NewMem(), "from", someLog, 200)
	defer from.Close()
	to := filled(t, fs, "to", someLog, 20)
	defer to.Close()
	if _, err := to.Checkpoint(); err != nil { // writes out, too
		t.Fatal(err)
	}
	copied(t, from, to)
	db, err := Open("to", onFS(fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if names := left(t, db); db.Seq() != 20 || db.Remade() != nil || len(names) > 0 {
		t.Errorf("at %d, made anew: %v, left %q", db.Seq(), db.Remade(), names)
	}
	whole(t, db)
}

// TestDiskFailsWhileAdopting: every step of the exchange may fail; the index then is empty and can
// be used. (What fails within Pebble ends the process, as it always does.)
func TestDiskFailsWhileAdopting(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is gone")
	from := filled(t, vfs.NewMem(), "from", someLog, 50)
	defer from.Close()
	for fail := int64(1); ; fail++ {
		var on atomic.Bool
		var steps atomic.Int64
		fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && (strings.Contains(op.Path, takenFolder) || strings.Contains(op.Path, damageMark) || op.Kind == errorfs.OpRemoveAll) {
				if steps.Add(1) == fail {
					return broken
				}
			}
			return nil
		}))
		to := filled(t, fs, "to", someLog, 20)
		copied(t, from, to)
		on.Store(true)
		err := to.Adopt(50, 50)
		on.Store(false)
		switch {
		case err == nil && to.Seq() == 50, errors.Is(err, ErrNotAdopted) && to.Seq() == 0:
			whole(t, to)
			if err := to.Close(); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatalf("step %d: at %d, %v", fail, to.Seq(), err)
		}
		if steps.Load() < fail {
			t.Logf("%d steps", fail-1)
			return
		}
	}
}

func TestAdoptIsRefused(t *testing.T) {
	t.Parallel()
	memory, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	_, noCheckpoint := memory.Checkpoint()
	_, noFolder := memory.Gather()
	for _, err := range []error{noCheckpoint, noFolder, memory.Adopt(1, 1)} {
		if !errors.Is(err, ErrNoFolder) {
			t.Errorf("in memory: %v", err)
		}
	}
	from := filled(t, vfs.NewMem(), "from", someLog, 50)
	to := filled(t, vfs.NewMem(), "to", someLog, 20)
	copied(t, from, to)
	v := to.View()
	if err := to.Adopt(50, 50); !errors.Is(err, ErrNotAdopted) || to.Seq() != 20 {
		t.Errorf("under a view: %v, at %d", err, to.Seq())
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	whole(t, to)
	if err := to.Adopt(50, 50); err != nil || to.Seq() != 50 {
		t.Errorf("later: %v, at %d", err, to.Seq())
	}
	for _, dir := range []string{"from", "elsewhere/given-x", "from/taken", "from/given-x/.."} {
		if err := from.RemoveCheckpoint(dir); err == nil {
			t.Errorf("%s is removed", dir)
		}
	}
	if err := errors.Join(from.Close(), to.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Checkpoint(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := to.Adopt(1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
