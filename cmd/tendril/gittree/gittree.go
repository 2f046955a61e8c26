// Package gittree works on folders of bare repositories, <npub>/<identifier>.git, as GRASP servers
// have them: it finds, copies and pushes them, by git and with none of the user's configuration.
package gittree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// Repo is a bare repository in a folder, or at a server.
type Repo struct {
	At   string // absolute path or URL
	Name string // where it is in a folder: <npub>/<identifier>.git, percent-encoded
}

// On returns the repository of that name at a GRASP server. server is its http(s) URL.
func (r Repo) On(server string) Repo {
	r.At = strings.TrimRight(server, "/") + "/" + r.Name
	return r
}

// Find lists the repositories of a folder. It passes over what is named in another way.
func Find(dir string) (all []Repo, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	owners, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	for _, owner := range owners {
		if prefix, _, err := nip19.Decode(owner.Name()); err != nil || prefix != "npub" {
			continue
		}
		folders, err := os.ReadDir(filepath.Join(dir, owner.Name()))
		if err != nil {
			return nil, fmt.Errorf("list repositories: %w", err)
		}
		for _, folder := range folders {
			path := filepath.Join(dir, owner.Name(), folder.Name())
			name, bare := strings.CutSuffix(folder.Name(), ".git")
			if _, err := os.Stat(filepath.Join(path, "objects")); !bare || err != nil {
				continue
			}
			if identifier := identifierOf(name); nostr.CheckIdentifier(identifier) == nil {
				all = append(all, Repo{path, owner.Name() + "/" + nostr.EncodeIdentifier(identifier) + ".git"})
			}
		}
	}
	return all, nil
}

// identifierOf reads an identifier that servers write percent-encoded or as it is.
func identifierOf(name string) string {
	if identifier, err := nostr.DecodeIdentifier(name); err == nil {
		return identifier
	}
	if identifier, err := url.PathUnescape(name); err == nil {
		return identifier
	}
	return name
}

// NotFound reports whether git says that a server has no such repository.
func NotFound(err error) bool { return err != nil && strings.Contains(err.Error(), "' not found") }

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

// busyPause is the pause before a server is asked again that has no room, busyTries how often it is
// asked.
var (
	busyPause = 5 * time.Second
	busyTries = 24
)

// run runs a git command in a repository, with a clean environment, and gives what it printed.
func run(ctx context.Context, dir string, args ...string) (string, error) {
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, "git", append(safe[:len(safe):len(safe)], args...)...)
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
		"--update-head-ok",
		pack, "--", from, "+refs/*:refs/*"); err != nil {
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

// Push pushes the references of a repository at an absolute path to a URL and returns how many
// there are: branches and tags, of which the server has these and no others afterwards, or with
// pulls the commits of these pull requests, by the ids of their events. Without any, nothing is
// pushed.
func Push(ctx context.Context, from, url string, pulls map[string]bool) (count int, err error) {
	const nostrRefs = "refs/nostr/"
	prefixes := []string{"refs/heads/", "refs/tags/"}
	if pulls != nil {
		prefixes = []string{nostrRefs}
	}
	listed, err := run(ctx, from, append([]string{"for-each-ref", "--format=%(objectname) %(refname) %(symref)"},
		prefixes...)...)
	if err != nil {
		return 0, err
	}
	var refs strings.Builder
	for line := range strings.Lines(listed) {
		if fields := strings.Fields(line); len(fields) == 2 && (pulls == nil ||
			pulls[strings.TrimPrefix(fields[1], nostrRefs)]) {
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
	err = errors.Join(initBare(ctx, temp),
		os.WriteFile(filepath.Join(temp, "packed-refs"), []byte(refs.String()), 0o600),
		os.WriteFile(filepath.Join(temp, "objects", "info", "alternates"), []byte(filepath.Join(from, "objects")+"\n"),
			0o600))
	if err != nil {
		return 0, err
	}
	args := []string{"push", "--quiet", "--force", "--atomic"}
	if pulls == nil {
		args = append(args, "--prune")
	}
	args = append(args, "--", url)
	for _, prefix := range prefixes {
		args = append(args, prefix+"*:"+prefix+"*")
	}
	_, err = run(ctx, temp, args...)
	return count, err
}
