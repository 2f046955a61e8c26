package eventdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"tendril.dev/lib/nostr"
)

// files returns those of a folder that match.
func files(t *testing.T, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no %s in %s: %v", pattern, dir, err)
	}
	return names
}

// spoil changes the bytes of a file from an offset on; negative ones count from the end.
func spoil(t *testing.T, path string, from, count int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if from < 0 {
		from += len(b)
	}
	for i := range min(count, len(b)-from) {
		b[from+i] ^= 0xff
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestADamagedIndexIsRebuilt: if anything is wrong with the files, the index opens, says so, and
// has everything again from the log.
func TestADamagedIndexIsRebuilt(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, dir string){
		"a table's data":   func(t *testing.T, dir string) { spoil(t, files(t, dir, "*.sst")[0], 0, 1<<20) },
		"a table's end":    func(t *testing.T, dir string) { spoil(t, files(t, dir, "*.sst")[0], -60, 60) },
		"the manifest":     func(t *testing.T, dir string) { spoil(t, slices.Max(files(t, dir, "MANIFEST-*")), 0, 1<<20) },
		"a table is empty": func(t *testing.T, dir string) { truncate(t, files(t, dir, "*.sst")[0]) },
		"a table is gone":  func(t *testing.T, dir string) { remove(t, files(t, dir, "*.sst")[0]) },
		"manifest is gone": func(t *testing.T, dir string) { remove(t, slices.Max(files(t, dir, "MANIFEST-*"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, dir := openBus(t), t.TempDir()
			events := notes(0, 50)
			last := write(t, b, events...)
			db, stop := followed(t, b, dir, quiet)
			waitFor(t, db, last)
			stop()
			damage(t, dir)

			db = open(t, dir)
			if db.Rebuilt() == nil || db.Seq() != 0 {
				t.Errorf("at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
			}
			intact(t, db)
			closeDB(t, db)
			db, stop = followed(t, b, dir, quiet)
			waitFor(t, db, last)
			holds(t, db, events...)
			stop()

			db = open(t, dir)
			if db.Rebuilt() != nil || db.Seq() != last {
				t.Errorf("opened again: at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
			}
			closeDB(t, db)
		})
	}
}

// TestDamageFoundInUse: what opens well and turns out to be damaged later is told, and the index is
// rebuilt when it is opened the next time.
func TestDamageFoundInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := open(t, dir)
	var recs []Record
	for i := range 2000 {
		ev := note(i)
		ev.Content = strings.Repeat(fmt.Sprint(i), 200)
		ev.ID = ev.GetID()
		recs = append(recs, Record{Seq: uint64(i + 1), Event: ev})
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
	closeDB(t, db)
	table := files(t, dir, "*.sst")[0]
	info, err := os.Stat(table)
	if err != nil {
		t.Fatal(err)
	}
	spoil(t, table, int(info.Size()*3/4), 64) // among the events, not among the ids, which are read at once

	db = open(t, dir)
	if db.Rebuilt() != nil {
		t.Fatalf("the damage was found at once: %v; the test wants some that is found later", db.Rebuilt())
	}
	v := db.View()
	var failed error
	for _, err := range v.Query(context.Background(), nostr.Filter{Kinds: []int{1}}) {
		failed = err
	}
	if failed == nil {
		t.Error("a damaged index answers as if nothing were wrong")
	}
	select {
	case err := <-db.Failed():
		if !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "rebuilt from the log") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("the damage is not told")
	}
	_ = v.Close()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	// This process has the folder locked until its end, so what it has left is opened elsewhere.
	next := filepath.Join(t.TempDir(), "next")
	if err := os.CopyFS(next, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	dir = next

	db = open(t, dir)
	if db.Rebuilt() == nil || db.Seq() != 0 {
		t.Errorf("opened again: at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
	}
	closeDB(t, db)
}

// TestAnIndexInUseIsNotDamaged: a second process gets an error, and takes nothing away from the
// first.
func TestAnIndexInUseIsNotDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := open(t, dir)
	if err := db.Apply([]Record{{Seq: 1, Event: note(1)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); err == nil {
		t.Fatal("opened twice")
	}
	holds(t, db, note(1))
	closeDB(t, db)
	db = open(t, dir)
	if db.Rebuilt() != nil || db.Seq() != 1 {
		t.Errorf("at %d, rebuilt because: %v", db.Seq(), db.Rebuilt())
	}
	closeDB(t, db)
}

// intact: the index says nothing of damage. What was told about files that are gone would end a
// process that has just mended itself.
func intact(t *testing.T, db *DB) {
	t.Helper()
	select {
	case err := <-db.Failed():
		t.Errorf("the new files are said to be damaged: %v", err)
	default:
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
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
			ev := note(n)
			ev.Content = strings.Repeat("x", 4000)
			ev.ID = ev.GetID()
			_ = db.Apply([]Record{{Seq: uint64(n), Event: ev}}) // it may block: the process ends meanwhile
		}
	}()
	select {
	case err := <-db.Failed():
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "in index cannot be written (is the disk full?); make room") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("a full disk is not told")
	}
	full.Store(false)
	<-done
	_ = db.Close()
}
