package repository

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nip34"
)

const (
	headsPrefix    = "refs/heads/"
	tagsPrefix     = "refs/tags/"
	symbolicPrefix = "ref: "

	// maxSymbolic bounds the symbolic references of a repository: git changes them one process at a time.
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

// Refs reads the references.
func (r *Repo) Refs(ctx context.Context) (Refs, error) {
	refs := Refs{ByName: map[string]string{}, Symbolic: map[string]string{}}
	out, err := r.run(ctx, "", "for-each-ref", "--format=%(objectname) %(refname) %(symref)")
	if err != nil {
		return Refs{}, fmt.Errorf("read references: %w", err)
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
	if err := lines.Err(); err != nil {
		return Refs{}, fmt.Errorf("read references: %w", err)
	}
	if refs.Head, err = r.Head(); err != nil {
		return Refs{}, err
	}
	return refs, nil
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

// SetRefs makes refs/heads/* and refs/tags/* exactly what is wanted, in one transaction, and lets HEAD follow head ("" leaves it as
// it is). Other references are left alone. Only where a name that goes is the folder of one that comes, or the other way round,
// the former goes in a transaction before: git cannot do both at once. A symbolic reference to a branch that is not wanted is left
// out; nobody could see it. It says whether anything changed.
//
// It fails, and leaves the references as they were, if an object is not there or a branch would name something that is no commit.
func (r *Repo) SetRefs(ctx context.Context, want, symbolic map[string]string, head string) (changed bool, err error) {
	if err := checkWanted(want, symbolic, head); err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
	now, err := r.Refs(ctx)
	if err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
	plan := planRefs(now, want, symbolic)
	for _, changes := range [][]refChange{plan.before, plan.changes} {
		if len(changes) == 0 {
			continue
		}
		if err := r.transaction(ctx, changes); err != nil {
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
	if head != "" && head != now.Head {
		if _, err := r.run(ctx, "", "symbolic-ref", "HEAD", head); err != nil {
			return changed, fmt.Errorf("set HEAD: %w", err)
		}
		changed = true
	}
	return changed, nil
}

// SetRef makes one reference name an object that is there.
func (r *Repo) SetRef(ctx context.Context, name, id string) error {
	if err := checkRef(name, id, "refs/"); err != nil {
		return fmt.Errorf("set reference: %w", err)
	}
	if err := r.transaction(ctx, []refChange{{name: name, to: id}}); err != nil {
		return fmt.Errorf("set reference: %w", err)
	}
	return nil
}

// DeleteRef removes one reference. One that is not there is no error.
func (r *Repo) DeleteRef(ctx context.Context, name string) error {
	if err := checkRefName(name, "refs/"); err != nil {
		return fmt.Errorf("delete reference: %w", err)
	}
	if err := r.transaction(ctx, []refChange{{name: name}}); err != nil {
		return fmt.Errorf("delete reference: %w", err)
	}
	return nil
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

// refPlan is how to come from the references that are to those that are wanted.
type refPlan struct {
	before   []refChange       // deletions that must come first
	changes  []refChange       // deletions and updates, one transaction
	symbolic map[string]string // symbolic references to set after it
}

// planRefs compares branches and tags with what is wanted.
func planRefs(now Refs, want, symbolic map[string]string) refPlan {
	plan := refPlan{symbolic: map[string]string{}}
	for name, branch := range symbolic {
		if _, born := want[branch]; born && now.Symbolic[name] != branch {
			plan.symbolic[name] = branch
		}
	}
	var deletions []refChange
	stays := func(name string) bool {
		_, direct := want[name]
		branch, wanted := symbolic[name]
		_, born := want[branch]
		return direct || (wanted && born)
	}
	for _, name := range slices.Sorted(maps.Keys(now.ByName)) {
		if isBranchOrTag(name) && !stays(name) {
			deletions = append(deletions, refChange{name: name, from: now.ByName[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now.Symbolic)) {
		if isBranchOrTag(name) && !stays(name) {
			deletions = append(deletions, refChange{name: name})
		}
	}
	fresh := map[string]bool{} // names that were not there, and the folders that they need
	var updates []refChange
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if now.ByName[name] != want[name] {
			updates = append(updates, refChange{name: name, to: want[name], from: now.ByName[name]})
			addWithFolders(fresh, name)
		}
	}
	for name := range plan.symbolic {
		addWithFolders(fresh, name)
	}
	for _, d := range deletions {
		if fresh[d.name] || isFolderOfAny(d.name, fresh) {
			plan.before = append(plan.before, d)
		} else {
			plan.changes = append(plan.changes, d)
		}
	}
	plan.changes = append(plan.changes, updates...)
	return plan
}

func addWithFolders(names map[string]bool, name string) {
	for len(name) > len(tagsPrefix) {
		names[name] = true
		name = name[:strings.LastIndexByte(name, '/')]
	}
}

// isFolderOfAny says whether a folder of name is itself one of the names.
func isFolderOfAny(name string, names map[string]bool) bool {
	for {
		end := strings.LastIndexByte(name, '/')
		if name = name[:end]; len(name) <= len(tagsPrefix) {
			return false
		}
		if names[name] {
			return true
		}
	}
}

func isBranchOrTag(name string) bool {
	return strings.HasPrefix(name, headsPrefix) || strings.HasPrefix(name, tagsPrefix)
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
