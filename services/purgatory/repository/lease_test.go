package repository_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// leased opens a store whose leases end with the context.
func leased(t testing.TB, root, git string, lease context.Context) *repository.Store {
	t.Helper()
	s, err := repository.NewStore(repository.Options{Root: root, Git: git, Lease: func(string) context.Context { return lease }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNothingIsWrittenAfterTheLease: neither is anything moved or removed, nor a reference set;
// what the next worker has stored stays. Reading goes on.
func TestNothingIsWrittenAfterTheLease(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "git")
	lease, end := context.WithCancel(t.Context())
	before := gittest.Repo(t, leased(t, root, "", lease), "x")
	w := gittest.NewWork(t)
	first := w.Commit("a", "1")
	store(t, before, w.Pack("main"))
	set(t, before, first)
	end()

	next := gittest.Repo(t, leased(t, root, "", t.Context()), "x")
	second := w.Commit("a", "2")
	store(t, next, w.Pack("main", "^"+first))
	set(t, next, second)
	other, err := next.Store().Repo(nostr.RepoRef{PubKey: strings.Repeat("a1", 32), Identifier: "x"})
	must(t, err)
	must(t, other.Ensure(t.Context()))
	third := w.Commit("a", "3")
	store(t, other, w.Pack("main"))
	ctx := t.Context()
	for name, write := range map[string]func() error{
		"a pack":       func() error { _, _, err := before.StorePack(ctx, bytes.NewReader(w.Pack("main"))); return err },
		"references":   func() error { _, err := before.SetRefs(ctx, refs{"refs/heads/main": first}, nil, ""); return err },
		"a reference":  func() error { return before.SetRef(ctx, "refs/tags/x", first) },
		"a deletion":   func() error { return before.DeleteRef(ctx, "refs/heads/main") },
		"housekeeping": func() error { return before.Gc(ctx) },
		"sharing":      func() error { return before.Share(ctx, other, []string{third}) },
		"a sweep":      before.Sweep,
		"leftovers":    before.SweepPushes,
		"removal":      func() error { return before.Remove(ctx) },
		"a push":       func() error { return before.ReceivePack(false, 1<<20).Run(ctx) },
	} {
		if err := write(); !errors.Is(err, repository.ErrLease) {
			t.Errorf("%s: %v", name, err)
		}
	}
	has(t, before, true, first, second)
	has(t, before, false, third)
	if got, err := before.Refs(ctx); err != nil || got.ByName["refs/heads/main"] != second {
		t.Errorf("main is %v, %v", got, err)
	}
	gittest.Fsck(t, next.Path())
}

// TestTheEndOfALeaseStopsGit in the middle of its work. Not parallel: a program that is being
// written cannot be run, and a fork elsewhere holds its file open.
func TestTheEndOfALeaseStopsGit(t *testing.T) {
	slow, began := filepath.Join(t.TempDir(), "git"), filepath.Join(t.TempDir(), "began")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$1\" in index-pack) touch %s; sleep 3600;; esac\nexec git \"$@\"\n", began)
	must(t, os.WriteFile(slow, []byte(script), 0o755))
	lease, end := context.WithCancel(t.Context())
	r := gittest.Repo(t, leased(t, filepath.Join(t.TempDir(), "git"), slow, lease), "x")
	w := gittest.NewWork(t)
	w.Commit("a", "1")
	result := make(chan error)
	go func() {
		_, _, err := r.StorePack(t.Context(), bytes.NewReader(w.Pack("main")))
		result <- err
	}()
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := os.Stat(began); err == nil || time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	end()
	select {
	case err := <-result:
		if !errors.Is(err, repository.ErrLease) {
			t.Errorf("the pack: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("git goes on")
	}
	untouched(t, r)
}
