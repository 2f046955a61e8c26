package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

const (
	headsPrefix    = "refs/heads/"
	tagsPrefix     = "refs/tags/"
	symbolicPrefix = "ref: "

	// maxSymbolic bounds the symbolic references of a repository: git changes them one process at a
	// time.
	maxSymbolic = 256
)

// ErrUnfit are references that no repository of ours can have, now or later.
var ErrUnfit = errors.New("these references cannot be")

// Refs are the references of a repository at one moment.
type Refs struct {
	// ByName maps the full names of references to the objects that they name.
	ByName map[string]string
	// Symbolic maps symbolic references to the branches that they follow. They are not in ByName.
	Symbolic map[string]string
	// Head is the branch that HEAD follows (its full name), whether it is born or not.
	Head string
}

// Refs reads the references as git does: their files first, then packed-refs, into which git moves
// them in that order. It starts no git. What git would not take for a reference is left out.
func (r *Repo) Refs() (Refs, error) { return r.refsBelow("refs/") }

// BranchesAndTags is Refs without what is named for pull requests, of which there may be thousands,
// but for some of these.
func (r *Repo) BranchesAndTags(and ...string) (Refs, error) {
	return r.refsBelow(append([]string{headsPrefix, tagsPrefix}, and...)...)
}

// RefsBelow is Refs of some folders, "refs/nostr/" for example, and single references.
func (r *Repo) RefsBelow(folders ...string) (Refs, error) { return r.refsBelow(folders...) }

// NamesBelow are the names of references in a folder. What they name is not read.
func (r *Repo) NamesBelow(folder string) (names map[string]bool, err error) {
	names = map[string]bool{}
	err = ignoreGone(filepath.WalkDir(r.in(folder), func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, r.Path+"/")
		if err == nil && !entry.IsDir() && nostr.CheckRefName(name) == nil {
			names[name] = true
		}
		return ignoreGone(err)
	}))
	if err == nil {
		err = r.packedRefs(func(name, _ string) { names[name] = names[name] || strings.HasPrefix(name, folder) })
	}
	maps.DeleteFunc(names, func(_ string, is bool) bool { return !is })
	if err != nil {
		return nil, fmt.Errorf("read the names of references: %w", err)
	}
	return names, nil
}

func (r *Repo) refsBelow(folders ...string) (Refs, error) {
	refs := Refs{ByName: map[string]string{}, Symbolic: map[string]string{}}
	var err error
	for _, folder := range folders {
		err = errors.Join(err, ignoreGone(filepath.WalkDir(r.in(folder),
			func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return ignoreGone(err)
				}
				content, err := os.ReadFile(path)
				refs.add(strings.TrimPrefix(path, r.Path+"/"), strings.TrimSpace(string(content)))
				return ignoreGone(err)
			})))
	}
	isAsked := func(name string) bool {
		return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(name, folder) })
	}
	if err == nil {
		err = r.packedRefs(func(name, id string) {
			if isAsked(name) {
				refs.add(name, id)
			}
		})
	}
	maps.DeleteFunc(refs.Symbolic, func(_, branch string) bool { return refs.ByName[branch] == "" })
	if err == nil {
		refs.Head, err = r.Head()
	}
	if err != nil {
		return Refs{}, fmt.Errorf("read references: %w", err)
	}
	return refs, nil
}

// packedRefs gives the references in packed-refs.
func (r *Repo) packedRefs(each func(name, id string)) error {
	packed, err := os.ReadFile(r.in("packed-refs"))
	for line := range strings.Lines(string(packed)) {
		id, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "" {
			each(name, id)
		}
		if !isID(id) && !strings.HasPrefix(id, "#") && !strings.HasPrefix(id, "^") {
			err = fmt.Errorf("packed-refs has the line %q", line[:min(len(line), 100)])
		}
	}
	return ignoreGone(err)
}

func (r Refs) add(name, value string) {
	branch, symbolic := strings.CutPrefix(value, symbolicPrefix)
	switch {
	case nostr.CheckRefName(name) != nil || r.ByName[name] != "" || r.Symbolic[name] != "":
	case symbolic:
		r.Symbolic[name] = branch
	case isID(value):
		r.ByName[name] = value
	}
}

// Head is the branch that HEAD follows (its full name); "": it follows none.
func (r *Repo) Head() (string, error) {
	content, err := os.ReadFile(r.in("HEAD"))
	if err != nil {
		return "", fmt.Errorf("read which branch HEAD follows: %w", err)
	}
	branch, follows := strings.CutPrefix(strings.TrimSpace(string(content)), symbolicPrefix)
	if !follows {
		return "", nil
	}
	return branch, nil
}

// IsNamed reports whether a reference that is a file, as nearly all are, names an object.
func (r *Repo) IsNamed(name, id string) bool {
	if nostr.CheckRefName(name) != nil {
		return false
	}
	content, err := os.ReadFile(r.in(name))
	return err == nil && strings.TrimSpace(string(content)) == id
}

// SetRefs makes refs/heads/* and refs/tags/* exactly what is wanted, in one transaction, and lets
// HEAD follow head if that branch is among them; "" and a branch without data leave HEAD as it is.
// Where no branch is left, HEAD is what git init makes it. Other references are left alone. Only
// where a name that goes is the folder of one that comes, or the other way round, all that goes
// does so in a transaction before: git cannot do both at once. A symbolic reference to a branch
// that is not wanted is left out; no client could see it.
//
// It fails, and leaves the references as they were, if an object is not there with all that it
// reaches (ErrBroken). What no repository could ever have, a branch that names something that is no
// commit for example, is ErrUnfit: its author must not hold up others.
func (l *Locked) SetRefs(ctx context.Context, want, symbolic map[string]string, head string) error {
	for name := range joined(want, symbolic) {
		if !isBranchOrTag(name) || nostr.CheckRefName(name) != nil {
			return fmt.Errorf("%w: %q is no branch or tag", ErrUnfit, name)
		}
	}
	now, err := l.BranchesAndTags()
	if err != nil {
		return err
	}
	deletions, updates, follow := planRefs(now, want, symbolic)
	if len(follow) > maxSymbolic {
		return fmt.Errorf("%w: there are more than %d symbolic references", ErrUnfit, maxSymbolic)
	}
	switch {
	case want[head] != "" || want[symbolic[head]] != "":
	case !slices.ContainsFunc(slices.Collect(maps.Keys(want)), isBranch):
		head = l.Store.branch
	default:
		head = now.Head
	}
	if err := l.connected(ctx, updates); err != nil {
		return err
	}
	steps := [][]refChange{slices.Concat(deletions, updates)}
	if clash(deletions, updates) {
		steps = [][]refChange{deletions, updates}
	}
	for _, changes := range steps {
		if err := l.transaction(ctx, changes); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(follow)) {
		symbolic := l.writing("symbolic-ref", name, follow[name])
		symbolic.syncs = true
		if err := symbolic.Run(ctx); err != nil {
			return err
		}
		if err := syncPaths(l.in(name)); err != nil { // git does not do it
			return err
		}
	}
	if head == now.Head {
		return nil
	}
	return l.setHead(ctx, head)
}

// setHead lets HEAD follow a branch. Git would not sync the file: with an empty HEAD, which a power
// cut could leave, a folder is no repository any more.
func (l *Locked) setHead(ctx context.Context, branch string) error {
	if err := l.MayWrite(ctx); err != nil {
		return err
	}
	return writeDurably(l.in("HEAD"), symbolicPrefix+branch+"\n")
}

// refChange is one reference in a transaction.
type refChange struct {
	name string
	to   string // the object, or "" to delete it
}

// planRefs compares branches and tags with what is wanted: what to delete, what to create or move,
// and which symbolic references to set after that.
func planRefs(now Refs, want, symbolic map[string]string) (deletions, updates []refChange, follow map[string]string) {
	follow = map[string]string{}
	for name, branch := range symbolic {
		if want[branch] != "" && want[name] == "" {
			follow[name] = branch
		}
	}
	for name := range joined(now.ByName, now.Symbolic) {
		if isBranchOrTag(name) && want[name] == "" && follow[name] == "" {
			deletions = append(deletions, refChange{name: name})
		}
	}
	for name, id := range want {
		if now.ByName[name] != id {
			updates = append(updates, refChange{name, id})
		}
	}
	maps.DeleteFunc(follow, func(name, branch string) bool { return now.Symbolic[name] == branch })
	return deletions, updates, follow
}

func joined(a, b map[string]string) map[string]string {
	both := map[string]string{}
	maps.Copy(both, a)
	maps.Copy(both, b)
	return both
}

// clash reports whether a name that goes is the folder of one that comes, or the other way round.
func clash(deletions, updates []refChange) bool {
	return slices.ContainsFunc(deletions, func(d refChange) bool {
		return slices.ContainsFunc(updates, func(u refChange) bool {
			return isWithin(d.name, u.name) || isWithin(u.name, d.name)
		})
	})
}

func isWithin(name, folder string) bool {
	return len(name) > len(folder) && name[len(folder)] == '/' && strings.HasPrefix(name, folder)
}

func isBranch(name string) bool { return strings.HasPrefix(name, headsPrefix) }

func isBranchOrTag(name string) bool { return isBranch(name) || strings.HasPrefix(name, tagsPrefix) }

// SetRef makes one reference name an object that is there with all that it reaches.
func (l *Locked) SetRef(ctx context.Context, name, id string) error {
	change := []refChange{{name, id}}
	if err := l.connected(ctx, change); err != nil {
		return err
	}
	return l.transaction(ctx, change)
}

// DeleteRef removes one reference. One that is not there is no error.
func (l *Locked) DeleteRef(ctx context.Context, name string) error {
	return l.transaction(ctx, []refChange{{name: name}})
}

// connected walks from objects to the end of all that they reach and no reference does. ErrBroken:
// something is missing on the way.
func (r *Repo) connected(ctx context.Context, changes []refChange) error {
	var ids []string
	for _, c := range changes {
		if !isID(c.to) {
			return fmt.Errorf("%w: %q is not the id of an object of this repository", ErrUnfit, c.to)
		}
		ids = append(ids, c.to)
	}
	return r.whole(ctx, ids)
}

func (r *Repo) whole(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := r.reading("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all").ask(ctx,
		strings.Join(ids, "\n")+"\n")
	return broken(err)
}

// InPart returns those of some objects that are there while something that they reach is not.
func (r *Repo) InPart(ctx context.Context, ids []string) ([]string, error) {
	err := r.whole(ctx, ids)
	if !errors.Is(err, ErrBroken) {
		return nil, err
	}
	if len(ids) == 1 {
		return ids, nil
	}
	half := len(ids) / 2
	first, err := r.InPart(ctx, ids[:half])
	if err != nil {
		return nil, err
	}
	second, err := r.InPart(ctx, ids[half:])
	return slices.Concat(first, second), err
}

// transaction applies all the changes or none.
func (l *Locked) transaction(ctx context.Context, changes []refChange) error {
	if len(changes) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("start\x00")
	for _, c := range changes {
		if err := nostr.CheckRefName(c.name); err != nil || !strings.HasPrefix(c.name, "refs/") {
			return fmt.Errorf("%w: %q is no name for a reference", ErrUnfit, c.name)
		}
		change := "update " + c.name + "\x00" + c.to
		if c.to == "" {
			change = "delete " + c.name
		}
		b.WriteString("option no-deref\x00" + change + "\x00\x00")
	}
	b.WriteString("prepare\x00commit\x00")
	update := l.writing("update-ref", "--stdin", "-z")
	update.syncs = true
	_, err := update.ask(ctx, b.String())
	if says(err, "trying to write non-commit object") {
		return fmt.Errorf("%w: a branch would name what is no commit", ErrUnfit)
	}
	return err
}

// syncFolders puts to the disk which packs and references there are: git syncs files, and not the
// folders in which they get their names.
func (r *Repo) syncFolders() error {
	return filepath.WalkDir(r.Path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || !entry.IsDir():
		case filepath.Dir(path) == r.in("objects") && entry.Name() != packFolder:
			return filepath.SkipDir
		default:
			err = syncPaths(path)
		}
		return ignoreGone(err)
	})
}
