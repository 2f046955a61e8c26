package repository

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"tendril.dev/proto"
)

const (
	// browseTime and browsePatience bound what a page waits for.
	browseTime, browsePatience = 5 * time.Second, 2 * time.Second
	// maxFolder is the largest folder that is read, in bytes of its object.
	maxFolder = 4 << 20
	// keptFolders is for how many folders of how many commits what pages show is kept, and keptLogs
	// the same of the commits that an object reaches. Neither ever changes.
	keptFolders, keptLogs = 128, 256
	// maxSubject is how much of an author's name and of a subject is told, in bytes.
	maxSubject = 300
)

// object is what git tells of an object, and its content where that was asked for.
type object struct {
	id, kind string
	size     int64
	content  []byte
}

// Folder reads a folder, with its README, or a file of the commit that an object is or that a tag
// names. place is its path, "" for the root. Without a commit in the answer there is neither.
func (r *Repo) Folder(ctx context.Context, client, id, place string) (a proto.RepoFolderAnswer, err error) {
	if !isPath(place) || !isID(id) {
		return a, nil
	}
	found, err := r.look(ctx, client, id+"^{commit}", id+"^{commit}:"+place)
	if err != nil || found[0].kind != "commit" {
		return a, err
	}
	commit, target := found[0], found[1]
	switch {
	case target.kind == "blob":
		a.File, err = r.file(ctx, client, target, path.Base(place))
	case target.kind == "tree" && target.size <= maxFolder:
		var f *folder
		if f, err = r.folder(ctx, client, folderOf{commit.id, place}, target.id); err == nil {
			a.Entries, a.More, a.Partial = f.entries, f.more, !f.until.IsZero()
			if f.readme.kind == "blob" {
				a.Readme, err = r.file(ctx, client, f.readme, f.readmeName)
			}
		}
	default:
		return a, nil
	}
	if err == nil {
		a.Commit, err = r.commit(ctx, client, commit.id)
	}
	return a, err
}

// isPath reports whether a path can be that of something in a tree. Git would read a line break as
// the end of the question, and what begins with a dot as relative to a folder that there is not.
func isPath(place string) bool {
	if place == "" {
		return true
	}
	return !strings.ContainsFunc(place, unicode.IsControl) && !slices.ContainsFunc(strings.Split(place, "/"),
		func(part string) bool {
			return part == "" || part == "." || part == ".."
		})
}

// folder is what is kept of a folder in a commit: all but the text of its README.
type folder struct {
	entries    []proto.RepoEntry
	more       bool // there are entries that are left out
	readmeName string
	readme     object // without its content
	// until is when the last changes are looked for again, because there was no time to look for all;
	// zero: all were looked for.
	until time.Time
}

// searchAgain is after how many times as long a search for last changes that was cut is made again.
const searchAgain = 60

// folderOf is a folder in a commit.
type folderOf struct{ commit, place string }

// folder reads a folder, with the last change of each entry. tree is its object.
func (r *Repo) folder(ctx context.Context, client string, of folderOf, tree string) (*folder, error) {
	if f, kept := r.Store.folders.Get(of); kept && (f.until.IsZero() || time.Now().Before(f.until)) {
		return f, nil
	}
	read, err := r.read(ctx, client, tree)
	if err != nil {
		return nil, err
	}
	f, readmeID := new(folder), ""
	for entry, id := range treeEntries(read.content) {
		if entry.Kind == proto.EntryFile && isReadme(entry.Name) &&
			(f.readmeName == "" || betterReadme(entry.Name, f.readmeName)) {
			f.readmeName, readmeID = entry.Name, id
		}
		if len(f.entries) == proto.MaxRepoEntries {
			f.more = true
			continue
		}
		f.entries = append(f.entries, entry)
	}
	if f.readmeName != "" {
		found, err := r.look(ctx, client, readmeID)
		if err != nil {
			return nil, err
		}
		f.readme = found[0]
	}
	cut, err := r.addChanges(ctx, client, of, f.entries)
	if err != nil {
		return nil, err
	}
	if cut {
		f.until = time.Now().Add(searchAgain * r.Store.ChangesTime)
	}
	f.entries, f.more = thatFit(f.entries, f.more)
	r.Store.folders.Add(of, f)
	return f, nil
}

// thatFit leaves out the last entries where an answer has no room for them. Authors choose names and
// subjects that JSON writes with six bytes a character.
func thatFit(entries []proto.RepoEntry, more bool) ([]proto.RepoEntry, bool) {
	for {
		data, _ := json.Marshal(entries) // plain structures
		if len(data) <= proto.MaxRepoAnswer || len(entries) == 0 {
			return entries, more
		}
		entries, more = entries[:len(entries)*3/4], true
	}
}

// treeEntries reads the object of a folder: for each entry its mode, a space, its name, a zero and
// the 20 bytes of its id. What is no such entry ends it.
func treeEntries(tree []byte) func(yield func(proto.RepoEntry, string) bool) {
	return func(yield func(proto.RepoEntry, string) bool) {
		for len(tree) > 0 {
			head, rest, found := bytes.Cut(tree, []byte{0})
			mode, name, named := strings.Cut(string(head), " ")
			if !found || !named || len(rest) < 20 {
				return
			}
			kind := proto.EntryFile
			switch mode {
			case "40000":
				kind = proto.EntryFolder
			case "120000":
				kind = proto.EntryLink
			case "160000":
				kind = proto.EntrySubmodule
			}
			if !yield(proto.RepoEntry{Name: name, Kind: kind}, fmt.Sprintf("%x", rest[:20])) {
				return
			}
			tree = rest[20:]
		}
	}
}

// readmes are the names of files that introduce a folder, in lower case, the best one first.
var readmes = []string{"readme.md", "readme.markdown", "readme", "readme.txt"}

func isReadme(name string) bool { return slices.Contains(readmes, strings.ToLower(name)) }

func betterReadme(a, b string) bool {
	return slices.Index(readmes, strings.ToLower(a)) < slices.Index(readmes, strings.ToLower(b))
}

// file reads a file that is not too large.
func (r *Repo) file(ctx context.Context, client string, blob object, name string) (*proto.RepoFile, error) {
	f := &proto.RepoFile{Name: name, Bytes: blob.size}
	if blob.size == 0 || blob.size > proto.MaxRepoFile {
		return f, nil
	}
	read, err := r.read(ctx, client, blob.id)
	f.Data = read.content
	return f, err
}

// commit reads one commit.
func (r *Repo) commit(ctx context.Context, client, id string) (*proto.RepoCommit, error) {
	log, err := r.log(ctx, client, id, 0, 1)
	if err != nil || len(log) == 0 {
		return nil, err
	}
	return &log[0], nil
}

// Log reads commits that an object reaches, the newest first.
func (r *Repo) Log(ctx context.Context, client, id string, skip int) (a proto.RepoLogAnswer, err error) {
	if !isID(id) || skip < 0 || skip > proto.MaxRepoSkip {
		return a, nil
	}
	a.Commits, err = r.log(ctx, client, id, skip, proto.MaxRepoCommits+1)
	if len(a.Commits) > proto.MaxRepoCommits {
		a.Commits, a.More = a.Commits[:proto.MaxRepoCommits], true
	}
	return a, err
}

// logOf is a part of the commits that an object reaches.
type logOf struct {
	id         string
	skip, most int
}

func (r *Repo) log(ctx context.Context, client, id string, skip, most int) (commits []proto.RepoCommit, err error) {
	if kept, is := r.Store.logs.Get(logOf{id, skip, most}); is {
		return kept, nil
	}
	out, err := r.browsing(client, "log", "--no-show-signature", "--encoding=UTF-8", "--format=%H%x00%ct%x00%an%x00%s",
		fmt.Sprintf("--skip=%d", skip), fmt.Sprintf("--max-count=%d", most), id, "--").ask(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	for line := range strings.Lines(out) {
		if c, is := commitOf(strings.TrimSuffix(line, "\n")); is {
			commits = append(commits, c)
		}
	}
	r.Store.logs.Add(logOf{id, skip, most}, commits)
	return commits, nil
}

// commitOf reads what git was asked to print of a commit.
func commitOf(line string) (c proto.RepoCommit, is bool) {
	parts := strings.SplitN(line, "\x00", 4)
	if len(parts) != 4 {
		return c, false
	}
	return proto.RepoCommit{
		ID: parts[0], At: unixTime(parts[1]), Author: bounded(parts[2]), Subject: bounded(parts[3]),
	}, true
}

// unixTime reads a number of seconds; zero where it is none, or absurd.
func unixTime(text string) time.Time {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 || seconds >= 1<<36 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).UTC()
}

// bounded cuts what an author wrote at the bytes that are told of it.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxSubject)], "")
}

// browsing prepares a command for a visitor of a page.
func (r *Repo) browsing(client string, args ...string) *Command {
	c := r.reading(args...)
	c.Client, c.serves, c.Time, c.Patience = client, true, browseTime, browsePatience
	return c
}

// look asks git for the kind and the size of objects. Those that there are not have no kind.
func (r *Repo) look(ctx context.Context, client string, names ...string) ([]object, error) {
	out, err := r.browsing(client, "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)").ask(ctx,
		strings.Join(names, "\n")+"\n")
	if err != nil {
		return nil, fmt.Errorf("look at objects: %w", err)
	}
	found := make([]object, len(names))
	lines := strings.Split(out, "\n")
	for n := range min(len(names), len(lines)) {
		// Of what is missing git repeats the name, which may hold spaces.
		parts := strings.Split(lines[n], " ")
		if len(parts) != 3 || !isID(parts[0]) {
			continue
		}
		size, err := strconv.ParseInt(parts[2], 10, 64)
		if err != nil {
			continue
		}
		found[n] = object{id: parts[0], kind: parts[1], size: size}
	}
	return found, nil
}

// read reads an object whose size is known to be small.
func (r *Repo) read(ctx context.Context, client, id string) (o object, err error) {
	out, err := r.browsing(client, "cat-file", "--batch").ask(ctx, id+"\n")
	if err != nil {
		return o, fmt.Errorf("read an object: %w", err)
	}
	head, content, found := strings.Cut(out, "\n")
	parts := strings.Split(head, " ")
	if !found || len(parts) != 3 {
		return o, fmt.Errorf("read object %s: git says %q", id, OneLine(head))
	}
	return object{id: parts[0], kind: parts[1], size: int64(len(content) - 1),
		content: []byte(strings.TrimSuffix(content, "\n"))}, nil
}
