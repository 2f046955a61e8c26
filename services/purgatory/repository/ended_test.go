package repository_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

func TestEndedIsNoted(t *testing.T) {
	t.Parallel()
	repo := gittest.Repo(t, gittest.Store(t), "x")
	if note, err := repo.Ended(); note != nil || err != nil {
		t.Fatalf("a new repository: %+v, %v", note, err)
	}
	want := repository.Ended{Announcement: strings.Repeat("ab", 32), Reason: "deleted", Since: time.Unix(1000, 5).UTC(), Counted: time.Hour, Seen: time.Unix(4600, 5).UTC(), Kept: true}
	for range 2 {
		if err := repo.SetEnded(want); err != nil {
			t.Fatal(err)
		}
	}
	if note, err := repo.Ended(); err != nil || note == nil || *note != want {
		t.Fatalf("%+v, %v; want %+v", note, err, want)
	}
	if err := os.WriteFile(filepath.Join(repo.Path(), "ended"), []byte(`{"announcement":"x"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if note, err := repo.Ended(); note != nil || err != nil {
		t.Fatalf("a note that makes no sense: %+v, %v", note, err)
	}
	for range 2 {
		if err := repo.ForgetEnded(); err != nil {
			t.Fatal(err)
		}
	}
	if note, err := repo.Ended(); note != nil || err != nil {
		t.Fatalf("a forgotten note: %+v, %v", note, err)
	}
	gittest.Fsck(t, repo.Path())
}

func TestOneOwnersRepositories(t *testing.T) {
	t.Parallel()
	store := gittest.Store(t)
	one, two := gittest.Repo(t, store, "one"), gittest.Repo(t, store, "two")
	if one.Ref().PubKey != two.Ref().PubKey {
		t.Fatal("the repositories have different owners")
	}
	var got []string
	for ref, err := range store.Of(t.Context(), one.Ref().PubKey) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ref.Identifier)
	}
	if !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("%q", got)
	}
	for ref, err := range store.Of(t.Context(), strings.Repeat("77", 32)) {
		t.Errorf("somebody else has %v, %v", ref, err)
	}
}

// FuzzEnded: whatever stands in the file, it is a note of an announcement and a time, or none.
func FuzzEnded(f *testing.F) {
	for _, content := range []string{"", "{}", `{"announcement":"` + strings.Repeat("ab", 32) + `","since":"2026-11-22T12:00:00Z","kept":true,"counted_ns":-5}`, `{"since":7}`, "[]", "\x00"} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		note := repository.ParseEnded(content)
		if note != nil && (len(note.Announcement) != 64 || note.Since.IsZero() || note.Counted < 0) {
			t.Errorf("%q is a note: %+v", content, note)
		}
	})
}
