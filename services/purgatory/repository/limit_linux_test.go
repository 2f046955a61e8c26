package repository_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// TestGitIsBounded in its memory and its time, and what it starts. Not parallel: a program that is
// being written cannot be run, and a fork elsewhere holds its file open.
func TestGitIsBounded(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "git")
	script := "#!/bin/sh\ncase \"$1\" in tell) read line; sh -c 'ulimit -d; ulimit -t';; *) exec git \"$@\";; esac\n"
	if err := os.WriteFile(fake, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: fake, Memory: 512 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := gittest.Repo(t, s, "x").Command("tell")
	c.Pack = 5 << 20
	c.Stdin, c.Stdout = strings.NewReader("go\n"), &out
	if err := c.Run(t.Context()); err != nil || out.String() != "524288\n20\n" {
		t.Errorf("KiB and seconds %q, %v", out.String(), err)
	}
}
