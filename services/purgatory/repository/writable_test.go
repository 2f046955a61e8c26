package repository

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestVolumeIsTriedFromTimeToTimeAndNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var tries int
		var outcome error
		hang := make(chan struct{})
		close(hang)
		v := &volume{log: slog.New(slog.NewTextHandler(&log, nil)), try: func() error {
			tries++
			<-hang
			return outcome
		}}
		expect := func(what string, want error, wantTries int) {
			t.Helper()
			err := v.writable()
			synctest.Wait()
			if !errors.Is(err, want) || (err == nil) != (want == nil) || tries != wantTries {
				t.Errorf("%s: %v after %d tries, want %v after %d", what, err, tries, want, wantTries)
			}
		}
		expect("at first", nil, 1)
		outcome = syscall.ENOSPC
		expect("at once again", nil, 1)
		time.Sleep(probeFresh)
		for range 3 {
			expect("later", syscall.ENOSPC, 2)
		}
		time.Sleep(probeFresh)
		expect("still", syscall.ENOSPC, 3)

		hang, outcome = make(chan struct{}), nil
		time.Sleep(probeFresh)
		began := time.Now()
		for range 3 {
			expect("hanging", errNoAnswer, 4)
		}
		if took := time.Since(began); took > 3*probePatience {
			t.Errorf("waited %v for a disk that hangs", took)
		}
		close(hang)
		synctest.Wait()
		expect("awake", nil, 4)
		if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "no space left") || !strings.Contains(got, "again") {
			t.Errorf("the log says\n%s", got)
		}
	})
}

func TestProbeLeavesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, err := NewStore(Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Writable(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(root, newFolder)); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	// The name of the probe is not told, so that the sentence is the same each time.
	if err := s.probe(); !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), root) {
		t.Errorf("without a folder: %v", err)
	}
}

func TestUnwritable(t *testing.T) {
	t.Parallel()
	said := func(words string) error {
		return &Error{Command: "index-pack", Messages: words, Err: errors.New("exit status 128")}
	}
	for want, errs := range map[bool][]error{
		true: {
			fmt.Errorf("write: %w", &os.PathError{Op: "write", Err: syscall.ENOSPC}), syscall.EROFS, syscall.EACCES,
			fmt.Errorf("store: %w", said("fatal: write error: No space left on device")), said("unable to create temporary object directory"),
		},
		false: {nil, errors.New("No space left on device"), said("fatal: pack is corrupted (SHA1 mismatch)"), os.ErrNotExist, ErrBadPack},
	} {
		for _, err := range errs {
			if got := Unwritable(err); got != want {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
}
