// Package gittree works on folders of bare repositories, <npub>/<identifier>.git, as GRASP servers
// have them: it finds, copies and pushes them, by git and with none of the user's configuration.
package gittree

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unicode"

	"tendril.dev/lib/backoff"
)

// NotFound reports whether git says that a server has no such repository.
func NotFound(err error) bool { return err != nil && strings.Contains(err.Error(), "' not found") }

// safe is the configuration of every command: the folders may be another user's, and must not run
// anything.
var safe = []string{
	"-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.attributesFile=/dev/null",
	"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "fetch.unpackLimit=1",
	"-c", "core.fsync=committed,loose-object",
}

// environment is ours without what would change what git does.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(set string) bool {
		return strings.HasPrefix(set, "GIT_") && !strings.HasPrefix(set, "GIT_SSL_CA")
	})
	return append(env,
		// Without it git would go up from a folder that is no repository, and might find one there.
		"GIT_DIR=.",
		"HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "GIT_ALLOW_PROTOCOL=file:http:https",
		"GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0",
	)
}

// busyPause is the pause before a server is asked again that has no room, busyTries how often it is
// asked.
var (
	busyPause = 5 * time.Second
	busyTries = 24
)

// run runs a git command in a repository, with a clean environment, and gives what it printed.
func run(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := runWith(ctx, dir, "", args...)
	if err != nil {
		return "", err
	}
	return out, nil
}

// runWith is run with something to read. It gives what was printed beside an error too.
func runWith(ctx context.Context, dir, input string, args ...string) (string, error) {
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, "git", append(safe[:len(safe):len(safe)], args...)...)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, environment(), 5*time.Second
		var out, said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &said
		err := cmd.Run()
		if err == nil {
			return out.String(), nil
		}
		text := cmp.Or(oneLine(said.String()), err.Error())
		busy := strings.Contains(text, "error: 429") || strings.Contains(text, "error: 503")
		if try == busyTries || !busy {
			return out.String(), cmp.Or(ctx.Err(), fmt.Errorf("git %s: %s", args[0], text))
		}
		if err := backoff.Sleep(ctx, busyPause); err != nil {
			return out.String(), err
		}
	}
}

// oneLine makes one line of the last 2 KiB that git, or the server that it asked, has said.
func oneLine(said string) string {
	var lines []string
	for line := range strings.FieldsFuncSeq(said[max(0, len(said)-2<<10):], unicode.IsControl) {
		if line = strings.TrimSpace(strings.TrimPrefix(line, "remote: ")); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Mirror makes the repository at path have exactly the references of another, an absolute path or a
// URL, and all that they reach as its own. One that is not there is made.
func Mirror(ctx context.Context, from, path string) (err error) {
	if _, missing := os.Stat(path); missing != nil {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				os.RemoveAll(path)
			}
		}()
		if err := initBare(ctx, path); err != nil {
			return err
		}
	}
	// For a path git starts another git, which gets none of this configuration.
	const pack = "--upload-pack=git -c 'safe.directory=*' upload-pack"
	if _, err := run(ctx, path, "fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head",
		"--update-head-ok", pack, "--", from, "+refs/*:refs/*"); err != nil {
		return err
	}
	listed, err := run(ctx, path, "ls-remote", "--symref", pack, "--", from, "HEAD")
	if branch, is := strings.CutPrefix(listed, "ref: "); is {
		branch, _, _ = strings.Cut(branch, "\t")
		_, err = run(ctx, path, "symbolic-ref", "HEAD", branch)
	}
	return err
}

func initBare(ctx context.Context, path string) error {
	_, err := run(ctx, path, "init", "--quiet", "--bare", "--template=", ".")
	return err
}
