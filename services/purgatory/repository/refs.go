package repository

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nip34"
)

const (
	headsPrefix    = "refs/heads/"
	tagsPrefix     = "refs/tags/"
	symbolicPrefix = "ref: "

	// maxSymbolic bounds the symbolic references of a repository: git changes them one process at a
	// time.
	maxSymbolic = 256
)

// Refs are the references of a repository at one moment.
type Refs struct {
	// ByName maps the full names of references to the objects that they name.
	ByName map[string]string
	// Symbolic maps symbolic references to the branches that they follow. They are not in ByName.
	Symbolic map[string]string
	// Head is the branch that HEAD follows (its full name), whether it is born or not.
	Head string
}

// Refs reads the references. As a rule each is a file, and no git is started.
func (r *Repo) Refs(ctx context.Context) (Refs, error) {
	refs := Refs{Symbolic: map[string]string{}}
	found, err := r.readRefFiles()
	switch {
	case err != nil:
		return Refs{}, fmt.Errorf("read references: %w", err)
	case found.plain && !found.symbolic:
		refs.ByName = found.byName
	default:
		if refs, err = r.listRefs(ctx); err != nil {
			return Refs{}, fmt.Errorf("read references: %w", err)
		}
	}
	if refs.Head, err = r.Head(); err != nil {
		return Refs{}, err
	}
	return refs, nil
}

// listRefs asks git for the references, without HEAD.
func (r *Repo) listRefs(ctx context.Context) (Refs, error) {
	refs := Refs{ByName: map[string]string{}, Symbolic: map[string]string{}}
	out, err := r.run(ctx, "", "for-each-ref", "--format=%(objectname) %(refname) %(symref)")
	if err != nil {
		return Refs{}, err
	}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		id, rest, _ := strings.Cut(lines.Text(), " ")
		name, target, _ := strings.Cut(rest, " ")
		switch {
		case target != "":
			refs.Symbolic[name] = target
		case name != "":
			refs.ByName[name] = id
		}
	}
	return refs, lines.Err()
}

// Head is the branch that HEAD follows (its full name).
func (r *Repo) Head() (string, error) {
	f, err := os.Open(r.in("HEAD"))
	if err != nil {
		return "", fmt.Errorf("read HEAD: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read HEAD: %w", err)
	}
	branch, ok := strings.CutPrefix(strings.TrimSpace(string(content)), symbolicPrefix)
	if !ok {
		return "", nil
	}
	return branch, nil
}

// Tips are the objects that references name, branches first, each once, at most max of them.
func (r *Repo) Tips(ctx context.Context, max int) ([]string, error) {
	refs, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	return refs.tips(max), nil
}

func (r Refs) tips(max int) []string {
	names := make([]string, 0, len(r.ByName))
	for name := range r.ByName {
		names = append(names, name)
	}
	rank := func(name string) int {
		switch {
		case name == r.Head:
			return 0
		case strings.HasPrefix(name, headsPrefix):
			return 1
		case strings.HasPrefix(name, tagsPrefix):
			return 2
		}
		return 3
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var tips []string
	seen := map[string]bool{}
	for _, name := range names {
		if id := r.ByName[name]; !seen[id] && len(tips) < max {
			tips = append(tips, id)
			seen[id] = true
		}
	}
	return tips
}

// ErrUnfit are references that no repository of ours can have, now or later.
var ErrUnfit = errors.New("these references cannot be")

// SetRefs makes refs/heads/* and refs/tags/* exactly what is wanted, in one transaction, and lets
// HEAD follow head if that branch is among them; "" and a branch without data leave HEAD as it is.
// Where no branch is left, HEAD is what git init makes it. Other references are left alone. Only
// where a name that goes is the folder of one that comes, or the other way round, the former goes
// in a transaction before: git cannot do both at once. A symbolic reference to a branch that is not
// wanted is left out; nobody could see it. It says whether anything changed. What the references
// leave is noted in the pool before they change.
//
// It fails, and leaves the references as they were, if an object is not there. What no repository
// could ever have, a branch that names something that is no commit for example, is ErrUnfit:
// whoever wrote it must not hold up others.
func (r *Repo) SetRefs(ctx context.Context, want, symbolic map[string]string, head string) (changed bool, err error) {
	if err := checkWanted(want, symbolic, head); err != nil {
		return false, fmt.Errorf("set references: %w: %w", ErrUnfit, err)
	}
	now, err := r.Refs(ctx)
	if err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
	plan := planRefs(now, want, symbolic)
	types, err := r.typesOf(ctx, plan.changes)
	if err == nil {
		err = checkBranches(plan.changes, types)
	}
	if err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
	if err := r.Pool().mark(plan.leaves()); err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
	for _, changes := range [][]refChange{plan.before, plan.changes} {
		if len(changes) == 0 {
			continue
		}
		if err := r.apply(ctx, changes, types); err != nil {
			return changed, fmt.Errorf("set references: %w", err)
		}
		changed = true
	}
	for _, name := range slices.Sorted(maps.Keys(plan.symbolic)) {
		if _, err := r.run(ctx, "", "symbolic-ref", name, plan.symbolic[name]); err != nil {
			return changed, fmt.Errorf("set references: %w", err)
		}
		changed = true
	}
	if head, err = r.headFor(ctx, want, symbolic, head); err != nil {
		return changed, err
	}
	if head != "" && head != now.Head {
		if err := r.setHead(ctx, head); err != nil {
			return changed, fmt.Errorf("set HEAD: %w", err)
		}
		changed = true
	}
	return changed, nil
}

// headFor returns the branch that HEAD is to follow: the wanted one if it has data, git's own where
// there is no branch at all, "" for no change.
func (r *Repo) headFor(ctx context.Context, want, symbolic map[string]string, head string) (string, error) {
	_, born := want[head]
	if !born {
		_, born = want[symbolic[head]]
	}
	if born {
		return head, nil
	}
	for name := range want {
		if strings.HasPrefix(name, headsPrefix) {
			return "", nil
		}
	}
	bones, err := r.store.skeleton(ctx)
	if err != nil {
		return "", err
	}
	return bones.branch, nil
}

// setHead lets HEAD follow a branch, as git does it: the new HEAD is written to HEAD.lock, which
// only one can make, and renamed. Where there is a lock git is asked, which knows what to say.
func (r *Repo) setHead(ctx context.Context, branch string) error {
	lock := r.in("HEAD.lock")
	f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		_, err := r.run(ctx, "", "symbolic-ref", "HEAD", branch)
		return err
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(symbolicPrefix + branch + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(lock, r.in("HEAD"))
	}
	if err != nil {
		return errors.Join(err, removeFile(lock))
	}
	return nil
}

// typesOf returns the types of the objects that branches and, where no git is needed for that,
// other references are to name.
func (r *Repo) typesOf(ctx context.Context, changes []refChange) (map[string]string, error) {
	var branches, all []string
	for _, c := range changes {
		if c.to == "" {
			continue
		}
		all = append(all, c.to)
		if strings.HasPrefix(c.name, headsPrefix) {
			branches = append(branches, c.to)
		}
	}
	if types, known := r.smallKinds(ctx, all); known {
		return types, nil
	}
	return r.Types(ctx, branches)
}

// checkBranches refuses branches that would name objects which are no commits. Git would refuse
// them too, but not say it in a way that a program can tell from other failures.
func checkBranches(changes []refChange, types map[string]string) error {
	for _, c := range changes {
		if kind := types[c.to]; strings.HasPrefix(c.name, headsPrefix) && kind != "" && kind != "commit" {
			return fmt.Errorf("%w: the branch %q would name a %s", ErrUnfit, c.name, kind)
		}
	}
	return nil
}

// SetRef makes one reference name an object that is there.
func (r *Repo) SetRef(ctx context.Context, name, id string) error {
	if err := checkRef(name, id, "refs/"); err != nil {
		return fmt.Errorf("set reference: %w", err)
	}
	if err := r.leave(ctx, name, id); err != nil {
		return fmt.Errorf("set reference: %w", err)
	}
	types, _ := r.smallKinds(ctx, []string{id})
	if err := r.apply(ctx, []refChange{{name: name, to: id}}, types); err != nil {
		return fmt.Errorf("set reference: %w", err)
	}
	return nil
}

// DeleteRef removes one reference. One that is not there is no error.
func (r *Repo) DeleteRef(ctx context.Context, name string) error {
	if err := checkRefName(name, "refs/"); err != nil {
		return fmt.Errorf("delete reference: %w", err)
	}
	if err := r.leave(ctx, name, ""); err != nil {
		return fmt.Errorf("delete reference: %w", err)
	}
	if err := r.transaction(ctx, []refChange{{name: name}}); err != nil {
		return fmt.Errorf("delete reference: %w", err)
	}
	return nil
}

// leave notes in the pool what a reference leaves that is about to name another object, or none.
func (r *Repo) leave(ctx context.Context, name, to string) error {
	content, err := readShort(r.in(filepath.FromSlash(name)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now := strings.TrimSuffix(content, "\n")
	if _, none := os.Lstat(r.in("packed-refs")); now == "" && none == nil {
		refs, err := r.Refs(ctx)
		if err != nil {
			return err
		}
		now = refs.ByName[name]
	}
	if !isID(now) || now == to {
		return nil
	}
	return r.Pool().mark([]string{now})
}

// refChange is one reference in a transaction.
type refChange struct {
	name string
	to   string // the object, or "" to delete it
	from string // what it must name now, or "" for anything
}

// transaction applies all the changes or none.
func (r *Repo) transaction(ctx context.Context, changes []refChange) error {
	var b strings.Builder
	b.WriteString("start\x00")
	for _, c := range changes {
		b.WriteString("option no-deref\x00")
		if c.to == "" {
			b.WriteString("delete " + c.name + "\x00" + c.from + "\x00")
		} else {
			b.WriteString("update " + c.name + "\x00" + c.to + "\x00" + c.from + "\x00")
		}
	}
	b.WriteString("prepare\x00commit\x00")
	_, err := r.run(ctx, b.String(), "update-ref", "--stdin", "-z")
	if failure, ok := errors.AsType[*Error](err); ok && strings.Contains(failure.Messages, "File exists") {
		// A lock: of another, who will be done, or of a process that was killed.
		if err := r.sweepLocks(time.Now()); err != nil {
			return fmt.Errorf("sweep locks: %w", err)
		}
		_, err = r.run(ctx, b.String(), "update-ref", "--stdin", "-z")
	}
	return err
}

func checkWanted(want, symbolic map[string]string, head string) error {
	if len(symbolic) > maxSymbolic {
		return fmt.Errorf("there are more than %d symbolic references", maxSymbolic)
	}
	for name, id := range want {
		if err := checkRef(name, id, headsPrefix, tagsPrefix); err != nil {
			return err
		}
	}
	for name, branch := range symbolic {
		if err := checkRefName(name, headsPrefix, tagsPrefix); err != nil {
			return err
		}
		if err := checkRefName(branch, headsPrefix); err != nil {
			return err
		}
		if _, both := want[name]; both {
			return fmt.Errorf("%q is wanted twice", name)
		}
	}
	if head != "" {
		return checkRefName(head, headsPrefix)
	}
	return nil
}

func checkRef(name, id string, prefixes ...string) error {
	if !isID(id) {
		return fmt.Errorf("%q is not the id of an object of this repository (%d lower-case hex digits)", id, idLength)
	}
	return checkRefName(name, prefixes...)
}

func checkRefName(name string, prefixes ...string) error {
	if err := nip34.CheckRefName(name); err != nil {
		return err
	}
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return nil
		}
	}
	return fmt.Errorf("the reference name %q is not below %s", name, strings.Join(prefixes, " or "))
}
