package repository_test

import (
	"slices"
	"strings"
	"testing"

	"tendril.dev/test/fixture/gittest"
)

// TestUnreached: only commits are reached that a reference names or that such commits build on. A
// file, a folder or a tag that only lies there is not, nor is what is no object.
func TestUnreached(t *testing.T) {
	r, w := begin(t)
	first := w.Commit("a", "1")
	w.Git("tag", "--annotate", "--message", "taken back", "v1")
	second := w.Commit("a", "2")
	secret := w.Commit("secret", "hunter2")
	gittest.Fill(t, r.Repo, w.Pack("main", "v1"))
	lies := []string{secret, w.Git("rev-parse", "main:secret"), w.Git("rev-parse", "main^{tree}"), w.Git("rev-parse", "v1"),
		strings.Repeat("1", 40), strings.Repeat("2", 64), "main"}
	set(t, r, second)
	got, err := r.Unreached(t.Context(), append([]string{first, second}, lies...))
	if err != nil || !slices.Equal(got, lies) {
		t.Errorf("no reference reaches %q, want %q (%v)", got, lies, err)
	}
}
