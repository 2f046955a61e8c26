package eventdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tendril.dev/test/fixture"
)

// last returns the last of a folder's files that match.
func last(t *testing.T, dir, pattern string) string {
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	return slices.Max(names)
}

// spoil changes the bytes of a file from an offset on.
func spoil(t *testing.T, path string, from, count int) {
	b, err := os.ReadFile(path)
	must(t, err)
	for i := range min(count, len(b)-from) {
		b[from+i] ^= 0xff
	}
	must(t, os.WriteFile(path, b, 0o600))
}

// TestADamagedIndexIsRebuilt: if anything is wrong with the files, the index opens, says so, and is
// empty.
func TestADamagedIndexIsRebuilt(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, dir string){
		"a table's data":   func(t *testing.T, dir string) { spoil(t, last(t, dir, "*.sst"), 0, 1<<20) },
		"the manifest":     func(t *testing.T, dir string) { spoil(t, last(t, dir, "MANIFEST-*"), 0, 1<<20) },
		"a table is gone":  func(t *testing.T, dir string) { must(t, os.Remove(last(t, dir, "*.sst"))) },
		"manifest is gone": func(t *testing.T, dir string) { must(t, os.Remove(last(t, dir, "MANIFEST-*"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			db := open(t, dir)
			apply(t, db, notes(0, 50)...)
			if _, err := Open(dir, Options{}); err == nil {
				t.Error("opened twice")
			}
			holds(t, db, notes(0, 50)...)
			must(t, db.Close())
			damage(t, dir)
			db = open(t, dir)
			if db.Rebuilt() == nil || db.Seq() != 0 {
				t.Errorf("at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
			}
			holds(t, db)
			select {
			case err := <-db.Failed():
				t.Errorf("the new files are said to be damaged: %v", err)
			default:
			}
			apply(t, db, notes(0, 50)...)
			must(t, db.Close())
			db = open(t, dir)
			if db.Rebuilt() != nil || db.Seq() != 50 {
				t.Errorf("opened again: at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
			}
			must(t, db.Close())
		})
	}
}

// TestDamageFoundInUse: what opens well and turns out to be damaged later is told, and the index is
// rebuilt when it is opened the next time.
func TestDamageFoundInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := open(t, dir)
	var events []*Event
	for n, ev := range notes(0, 2000) {
		ev.Content = strings.Repeat(fmt.Sprint(n), 200)
		events = append(events, ev)
	}
	apply(t, db, events...)
	must(t, db.Close())
	table := last(t, dir, "*.sst")
	info, err := os.Stat(table)
	must(t, err)
	spoil(t, table, int(info.Size()*3/4), 64) // among the events, not among the ids, which are read at once

	db = open(t, dir)
	if db.Rebuilt() != nil {
		t.Fatalf("the damage was found at once: %v; the test wants some that is found later", db.Rebuilt())
	}
	v := db.View()
	if _, err := drain(v.Query(t.Context(), Filter{Kinds: []int{1}})); err == nil {
		t.Error("a damaged index answers as if nothing were wrong")
	}
	if err := fixture.Receive(t, "the damage is told", db.Failed()); !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "rebuilt from the log") {
		t.Error(err)
	}
	_ = v.Close()
	must(t, db.Close())
	// This process has the folder locked until its end, so what it has left is opened elsewhere.
	next := filepath.Join(t.TempDir(), "next")
	must(t, os.CopyFS(next, os.DirFS(dir)))
	db = open(t, next)
	if db.Rebuilt() == nil || db.Seq() != 0 {
		t.Errorf("opened again: at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
	}
	must(t, db.Close())
}

// TestAFullDiskIsWaitedFor: while nothing can be written readers go on, and when there is room all
// is written. An index whose disk stays full is closed all the same.
func TestAFullDiskIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, room := range []bool{true, false} {
		t.Run(fmt.Sprintf("room again: %t", room), func(t *testing.T) {
			t.Parallel()
			full, refused := &atomic.Bool{}, make(chan struct{}, 1)
			files := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if !full.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
					return nil
				}
				select {
				case refused <- struct{}{}:
				default:
				}
				return syscall.ENOSPC
			}))
			db := open(t, "index", Options{files: files, memTable: 256 << 10, hasRoom: func(string) bool { return !full.Load() }})
			must(t, db.Apply([]Record{{Seq: 1, Event: sized(made(1, 1, 1), 4000)}}))
			full.Store(true)
			applied := make(chan error, 1)
			go func() {
				var err error
				for n := 2; n < 500 && err == nil; n++ { // it waits for room before the last
					err = db.Apply([]Record{{Seq: uint64(n), Event: sized(made(n, 1, 1), 4000)}})
				}
				applied <- err
			}()
			fixture.Receive(t, "a write is refused", refused)
			v := db.View()
			if _, err := v.Event(made(1, 1, 1).ID); err != nil && !errors.Is(err, ErrNotFound) {
				t.Errorf("read while the disk is full: %v", err)
			}
			must(t, v.Close())
			select {
			case err := <-db.Failed():
				t.Fatalf("a full disk ends the index: %v", err)
			default:
			}
			if !room {
				must(t, db.Close())
				full.Store(false) // for the goroutines
			}
			full.Store(false)
			must(t, fixture.Receive(t, "all is applied", applied))
			if room {
				must(t, db.Close())
			}
		})
	}
}
