package repository

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tendril.dev/proto"
)

const (
	// maxChanges is how many commits are looked at for the last change of each entry of a folder, the
	// newest ones. Older changes are not told.
	maxChanges = 2000
	// maxChangeLine is the longest line that git may print about a change, in bytes.
	maxChangeLine = 64 << 10
)

// errAllFound ends a search for the last changes when there is nothing more to find.
var errAllFound = errors.New("every entry has its last change")

// addChanges tells of each entry of a folder which commit changed it last. cut: there was no time to
// look for all.
func (r *Repo) addChanges(ctx context.Context, client string, of folderOf, entries []proto.RepoEntry) (cut bool,
	err error) {
	last, cut, err := r.lastChanges(ctx, client, of, entries)
	if err != nil {
		return false, err
	}
	for n := range entries {
		entries[n].Changed = last[entries[n].Name]
	}
	return cut, nil
}

// lastChanges reads the log of a folder, from the newest commit to the oldest one, until each entry
// has been changed by one. cut: its time was over before.
func (r *Repo) lastChanges(ctx context.Context, client string, folder folderOf, entries []proto.RepoEntry) (
	last map[string]*proto.RepoCommit, cut bool, err error) {
	args := []string{"log", "--no-show-signature", "--encoding=UTF-8", "--no-renames", "--name-only",
		"--format=%x00%H%x00%ct%x00%an%x00%s", fmt.Sprintf("--max-count=%d", maxChanges), folder.commit, "--"}
	prefix := ""
	if folder.place != "" {
		args, prefix = append(args, folder.place), folder.place+"/"
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	found := &changes{prefix: prefix, last: map[string]*proto.RepoCommit{}, end: end}
	for _, entry := range entries {
		found.last[entry.Name] = nil
	}
	found.missing = len(found.last)
	command := r.browsing(client, args...)
	command.Stdout, command.Time = found, r.Store.ChangesTime
	command.env = []string{"GIT_LITERAL_PATHSPECS=1"}
	err = command.Run(ctx)
	cut = errors.Is(err, ErrTooLong)
	if err != nil && !errors.Is(err, errAllFound) && !cut {
		return nil, false, fmt.Errorf("read the last changes: %w", err)
	}
	return found.last, cut, nil
}

// changes reads what git prints: for each commit a line that begins with a zero, and the names of
// the files that it changed, a line each.
type changes struct {
	prefix  string // of the names
	last    map[string]*proto.RepoCommit
	missing int
	commit  *proto.RepoCommit
	lines   lines
	end     context.CancelCauseFunc
}

// Write never fails: what it does not understand it leaves out.
func (c *changes) Write(p []byte) (int, error) {
	c.lines.each = c.read
	n, err := c.lines.Write(p)
	if c.missing == 0 || len(c.lines.rest) > maxChangeLine {
		c.lines.rest = nil
		c.end(errAllFound)
	}
	return n, err
}

func (c *changes) read(line string) {
	if header, is := strings.CutPrefix(line, "\x00"); is {
		if commit, is := commitOf(header); is {
			c.commit = &commit
		}
		return
	}
	if strings.HasPrefix(line, `"`) {
		line, _ = strconv.Unquote(line) // git writes such names as C does
	}
	name, below := strings.CutPrefix(line, c.prefix)
	name, _, _ = strings.Cut(name, "/")
	if last, is := c.last[name]; below && is && last == nil && c.commit != nil {
		c.last[name] = c.commit
		c.missing--
	}
}

// Ages tells when the commits of branches and tags were made, or the texts of tags written, at most
// of [proto.MaxRepoAges], the newest ones, by their full names.
func (r *Repo) Ages(ctx context.Context, client string) (map[string]time.Time, error) {
	out, err := r.browsing(client, "for-each-ref", fmt.Sprintf("--count=%d", proto.MaxRepoAges), "--sort=-creatordate",
		"--format=%(creatordate:unix) %(refname)", "refs/heads", "refs/tags").ask(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the ages of references: %w", err)
	}
	times, size := map[string]time.Time{}, 0
	for line := range strings.Lines(out) {
		seconds, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if at := unixTime(seconds); !at.IsZero() && size < proto.MaxRepoAnswer {
			times[name] = at
			size += len(name) + 32
		}
	}
	return times, nil
}
