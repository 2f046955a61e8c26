package gittree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Git runs git with a clean environment. It is the name or path of the program.
type Git string

// NotFound reports whether git says that a server has no such repository.
func NotFound(err error) bool {
	return err != nil && strings.Contains(err.Error(), "fatal: repository '") && strings.Contains(err.Error(), "' not found")
}

// safe is the configuration of every command: the folders may be another user's, and must not run
// anything.
var safe = []string{
	"-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.attributesFile=/dev/null",
	"-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.fsync=committed,loose-object", "-c", "fetch.unpackLimit=1",
}

// environment is ours without what would change what git does.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(set string) bool {
		return strings.HasPrefix(set, "GIT_") && !strings.HasPrefix(set, "GIT_SSL_CA")
	})
	return append(env,
		// Without it git would go up from a folder that is no repository, and might find one there.
		"GIT_DIR=.",
		"HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=true", "GIT_ALLOW_PROTOCOL=file:http:https",
		"GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0",
	)
}

// maxSaid is how much is told of what a failed command wrote, in bytes.
const maxSaid = 2 << 10

// busyPause is the pause before a server is asked again that has no room, busyTries how often it is
// asked.
var (
	busyPause = 5 * time.Second
	busyTries = 24
)

// run runs a command in a repository and gives what it printed.
func (g Git) run(ctx context.Context, dir string, args ...string) (string, error) {
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, string(g), append(safe[:len(safe):len(safe)], args...)...)
		cmd.Dir, cmd.Env, cmd.WaitDelay = dir, environment(), 5*time.Second
		var out, said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &said
		err := cmd.Run()
		if err == nil {
			return out.String(), nil
		}
		text := cmp.Or(oneLine(said.String()), err.Error())
		busy := strings.Contains(text, "error: 429") || strings.Contains(text, "error: 503")
		if try == busyTries || !busy {
			return "", cmp.Or(ctx.Err(), fmt.Errorf("git %s: %s", args[0], text))
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// oneLine makes one line of what git, or the server that it asked, has said.
func oneLine(said string) string {
	var lines []string
	for line := range strings.FieldsFuncSeq(strings.ToValidUTF8(said[max(0, len(said)-maxSaid):], "?"), unicode.IsControl) {
		if line = strings.TrimSpace(strings.TrimPrefix(line, "remote: ")); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Mirror makes the repository at path have exactly the references of another, an absolute path or a
// URL, and all that they reach as its own. One that is not there is made.
func (g Git) Mirror(ctx context.Context, from, path string) (err error) {
	if _, missing := os.Stat(path); missing != nil {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				os.RemoveAll(path)
			}
		}()
		if err := g.initBare(ctx, path); err != nil {
			return err
		}
	}
	// For a path git starts another git, which gets none of this configuration.
	const pack = "--upload-pack=git -c 'safe.directory=*' upload-pack"
	if _, err := g.run(ctx, path, "fetch", "--quiet", "--force", "--prune", "--no-tags", "--no-write-fetch-head", "--update-head-ok",
		pack, "--", from, "+refs/*:refs/*"); err != nil {
		return err
	}
	listed, err := g.run(ctx, path, "ls-remote", "--symref", pack, "--", from, "HEAD")
	if branch, is := strings.CutPrefix(listed, "ref: "); is {
		branch, _, _ = strings.Cut(branch, "\t")
		_, err = g.run(ctx, path, "symbolic-ref", "HEAD", branch)
	}
	return err
}

func (g Git) initBare(ctx context.Context, path string) error {
	_, err := g.run(ctx, path, "init", "--quiet", "--bare", "--template=", ".")
	return err
}

// Push pushes the references of a repository at an absolute path that start with one of prefixes
// and are wanted, and returns how many there are. With exact the server has these and no others of
// the prefixes afterwards. Without any, nothing is pushed.
func (g Git) Push(ctx context.Context, from, url string, exact bool, wanted func(name string) bool, prefixes ...string) (count int, err error) {
	listed, err := g.run(ctx, from, append([]string{"for-each-ref", "--format=%(objectname) %(refname) %(symref)"}, prefixes...)...)
	if err != nil {
		return 0, err
	}
	var refs strings.Builder
	for line := range strings.Lines(listed) {
		if fields := strings.Fields(line); len(fields) == 2 && wanted(fields[1]) {
			refs.WriteString(strings.Join(fields, " ") + "\n")
			count++
		}
	}
	if count == 0 {
		return 0, nil
	}
	// The configuration of the repository may name programs to run: git works in one without it.
	temp, err := os.MkdirTemp("", "tendril-push-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(temp)
	err = errors.Join(g.initBare(ctx, temp),
		os.WriteFile(filepath.Join(temp, "packed-refs"), []byte(refs.String()), 0o600),
		os.WriteFile(filepath.Join(temp, "objects", "info", "alternates"), []byte(filepath.Join(from, "objects")+"\n"), 0o600))
	if err != nil {
		return 0, err
	}
	args := []string{"push", "--quiet", "--force", "--atomic"}
	if exact {
		args = append(args, "--prune")
	}
	args = append(args, "--", url)
	for _, prefix := range prefixes {
		args = append(args, prefix+"*:"+prefix+"*")
	}
	_, err = g.run(ctx, temp, args...)
	return count, err
}
