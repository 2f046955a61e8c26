package repository_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository"
)

// TestAFolderBelongsToOneSystem: a process of another log or another domain is refused with both
// names and the setting that accepts the change, and changes nothing until it is set.
func TestAFolderBelongsToOneSystem(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "git")
	const one, two = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
	for _, step := range []struct {
		name    string
		system  repository.System
		given   []string
		refused []string // words of the sentence; nil: it is taken
		domains []string
	}{
		{"a new folder", repository.System{Log: one, Domain: "a.example.com"}, nil, nil, []string{"a.example.com"}},
		{"again", repository.System{Log: one, Domain: "a.example.com"}, nil, nil, []string{"a.example.com"}},
		{"another domain", repository.System{Log: one, Domain: "b.example.com"}, nil,
			[]string{root, "a.example.com", "b.example.com", "NGIT_FORGET_LOG=a.example.com"}, nil},
		{"another log", repository.System{Log: two, Domain: "a.example.com"}, nil, []string{root, one, two, "NGIT_FORGET_LOG=" + one}, nil},
		{"another log, and the wrong one given up", repository.System{Log: two, Domain: "a.example.com"}, []string{two}, []string{one}, nil},
		{"a log in memory", repository.System{Domain: "a.example.com"}, nil, nil, []string{"a.example.com"}},
		{"a new domain, accepted", repository.System{Log: one, Domain: "b.example.com"}, []string{"a.example.com"}, nil, []string{"a.example.com", "b.example.com"}},
		{"back, by mistake", repository.System{Log: one, Domain: "a.example.com"}, []string{"a.example.com"}, []string{"b.example.com"}, nil},
		{"back, accepted", repository.System{Log: one, Domain: "a.example.com"}, []string{"b.example.com"}, nil, []string{"b.example.com", "a.example.com"}},
		{"a new log, accepted", repository.System{Log: two, Domain: "a.example.com"}, []string{one}, nil, []string{"b.example.com", "a.example.com"}},
		{"the old log", repository.System{Log: one, Domain: "a.example.com"}, nil, []string{two}, nil},
	} {
		before, _ := os.ReadFile(filepath.Join(root, ".belongs"))
		got, err := repository.TakeFolder(root, step.system, step.given)
		if step.refused == nil {
			if err != nil || !slices.Equal(got.Domains, step.domains) || got.Since.IsZero() {
				t.Errorf("%s: %+v, %v; want %q", step.name, got, err, step.domains)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: taken", step.name)
			continue
		}
		for _, word := range step.refused {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q does not name %s", step.name, err, word)
			}
		}
		if after, _ := os.ReadFile(filepath.Join(root, ".belongs")); string(after) != string(before) {
			t.Errorf("%s: the file has changed to %q", step.name, after)
		}
	}
}
