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

// TestAFullDiskEndsTheProcess: it is told in a sentence, and nothing waits for room.
func TestAFullDiskEndsTheProcess(t *testing.T) {
	t.Parallel()
	full := &atomic.Bool{}
	files := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.ENOSPC
		}
		return nil
	}))
	db := open(t, "index", Options{files: files, memTable: 256 << 10})
	full.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; n < 2000; n++ {
			_ = db.Apply([]Record{{Seq: uint64(n), Event: sized(made(n, 1, 1), 4000)}}) // it may block: the process ends meanwhile
		}
	}()
	err := fixture.Receive(t, "a full disk is told", db.Failed())
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "in index cannot be written (is the disk full?); make room") {
		t.Error(err)
	}
	full.Store(false)
	<-done
	_ = db.Close()
}
