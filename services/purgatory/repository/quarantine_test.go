package repository_test

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/packscan"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// quarantined puts the pack of a work tree's branch into quarantine.
func quarantined(t *testing.T, r *repository.Repo, pack []byte) *repository.Quarantine {
	t.Helper()
	q, err := r.Quarantine(t.Context(), bytes.NewReader(pack), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Drop(); err != nil {
			t.Error(err)
		}
	})
	return q
}

// TestQuarantineReadsAPack: the objects at their places, their contents, and where commits have
// them.
func TestQuarantineReadsAPack(t *testing.T) {
	t.Parallel()
	ctx, w := t.Context(), gittest.NewWork(t)
	r := gittest.Repo(t, gittest.Store(t), "x")
	first := w.Commit("a", "one")
	deep := strings.Repeat("a-folder-with-quite-a-long-name/", 120)
	second := w.Commit(deep+"b", "two")
	var places watchedPlaces
	pack := w.Pack("main")
	if _, err := packscan.Scan(bytes.NewReader(pack), packscan.Limits{Objects: 1000, ObjectBytes: 1 << 20, Bytes: 1 << 20}, &places); err != nil {
		t.Fatal(err)
	}
	q := quarantined(t, r, pack)
	ids, err := q.IDs(append(places, 1<<40))
	if err != nil || len(ids) != len(places) {
		t.Fatalf("%d ids of %d places: %v", len(ids), len(places), err)
	}
	got := map[string]string{}
	err = q.Files(ctx, append(ids, strings.Repeat("1", 40)), func(f repository.File) bool {
		content, err := io.ReadAll(f.Content)
		if err != nil || int64(len(content)) != f.Size {
			t.Errorf("%d bytes of %d: %v", len(content), f.Size, err)
		}
		got[f.ID] = f.Kind
		return true
	})
	one, two := w.Git("rev-parse", "main~1:a"), gittest.BlobID([]byte("two"))
	if err != nil || got[one] != "blob" || got[two] != "blob" || got[second] != "commit" || len(got) != 4 {
		t.Errorf("%v, %v", got, err)
	}
	var changes []string
	err = q.Changes(ctx, []string{second}, func(commit, path, file []byte) bool {
		changes = append(changes, string(commit)+" "+string(path)+" "+string(file))
		return true
	})
	want := []string{second + "  ", second + " " + deep + "b " + two, first + "  ", first + " a " + one}
	if err != nil || !slices.Equal(changes, want) {
		t.Errorf("%q, %v, want %q", changes, err, want)
	}
	for ids, want := range map[string]bool{second: true, second + " " + strings.Repeat("1", 40): false} {
		if has, err := q.Has(ctx, strings.Fields(ids)); err != nil || has != want {
			t.Errorf("%s: %v, %v", ids, has, err)
		}
	}
	if own, err := r.HasOwnObjects(); err != nil || own {
		t.Errorf("the repository has objects before the release: %v, %v", own, err)
	}
	if err := q.Release(); err != nil {
		t.Fatal(err)
	}
	if missing, err := r.Missing(ctx, ids); err != nil || len(missing) != 0 {
		t.Errorf("after the release %d are missing, %v", len(missing), err)
	}
}

// TestQuarantineStopsEarly: who has seen enough ends git.
func TestQuarantineStopsEarly(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	tip := w.Commit("a", "one")
	q := quarantined(t, gittest.Repo(t, gittest.Store(t), "x"), w.Pack("main"))
	calls := 0
	stop := func() bool { calls++; return false }
	if err := q.Changes(t.Context(), []string{tip}, func(_, _, _ []byte) bool { return stop() }); err != nil {
		t.Error(err)
	}
	if err := q.Files(t.Context(), []string{tip, tip}, func(repository.File) bool { return stop() }); err != nil || calls != 2 {
		t.Errorf("%d calls, %v", calls, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := q.Changes(ended, []string{tip}, func(_, _, _ []byte) bool { return true }); err == nil {
		t.Error("no error of what was ended")
	}
}

// watchedPlaces are where objects begin in a pack.
type watchedPlaces []int64

func (p *watchedPlaces) Begin(o packscan.Object) bool { *p = append(*p, o.Offset); return false }
func (p *watchedPlaces) Part([]byte) bool             { return false }
func (p *watchedPlaces) End()                         {}
