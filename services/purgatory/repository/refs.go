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
	refs, plain, err := r.readRefFiles()
	if err == nil && !plain {
		refs, err = r.listRefs(ctx)
	}
	if err != nil {
		return Refs{}, fmt.Errorf("read references: %w", err)
	}
	refs.Head, err = r.Head()
	return refs, err
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

// ErrUnfit are references that no repository of ours can have, now or later.
var ErrUnfit = errors.New("these references cannot be")

// SetRefs makes refs/heads/* and refs/tags/* exactly what is wanted, in one transaction, and lets
// HEAD follow head if that branch is among them; "" and a branch without data leave HEAD as it is.
// Where no branch is left, HEAD is what git init makes it. Other references are left alone. Only
// where a name that goes is the folder of one that comes, or the other way round, what goes does so
// in a transaction before: git cannot do both at once. A symbolic reference to a branch that is not
// wanted is left out; no client could see it. It says whether anything changed.
//
// It fails, and leaves the references as they were, if an object is not there with all that it
// reaches (ErrBroken). What no repository could ever have, a branch that names something that is no
// commit for example, is ErrUnfit: its author must not hold up others.
func (r *Repo) SetRefs(ctx context.Context, want, symbolic map[string]string, head string) (changed bool, err error) {
	if err := checkWanted(want, symbolic, head); err != nil {
		return false, fmt.Errorf("set references: %w: %w", ErrUnfit, err)
	}
	now, err := r.Refs(ctx)
	if err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
	plan := planRefs(now, want, symbolic)
	if err := r.connected(ctx, plan.comes(now)); err != nil {
		return false, fmt.Errorf("set references: %w", err)
	}
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
	if head = r.headFor(want, symbolic, head); head != "" && head != now.Head {
		if _, err := r.run(ctx, "", "symbolic-ref", "HEAD", head); err != nil {
			return changed, fmt.Errorf("set HEAD: %w", err)
		}
		changed = true
	}
	return changed, nil
}

// headFor returns the branch that HEAD is to follow: the wanted one if it has data, git's own where
// there is no branch at all, "" for no change.
func (r *Repo) headFor(want, symbolic map[string]string, head string) string {
	_, born := want[head]
	if !born {
		_, born = want[symbolic[head]]
	}
	if born {
		return head
	}
	for name := range want {
		if strings.HasPrefix(name, headsPrefix) {
			return ""
		}
	}
	return r.store.branch
}

// SetRef makes one reference name an object that is there with all that it reaches.
func (r *Repo) SetRef(ctx context.Context, name, id string) error {
	err := checkRef(name, id, "refs/")
	if err == nil {
		err = r.connected(ctx, []string{id})
	}
	if err == nil {
		err = r.transaction(ctx, []refChange{{name: name, to: id}})
	}
	if err != nil {
		return fmt.Errorf("set reference: %w", err)
	}
	return nil
}

// DeleteRef removes one reference. One that is not there is no error.
func (r *Repo) DeleteRef(ctx context.Context, name string) error {
	err := checkRefName(name, "refs/")
	if err == nil {
		err = r.transaction(ctx, []refChange{{name: name}})
	}
	if err != nil {
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
	if says(err, "File exists") {
		// A lock: of another, who will be done, or of a process that was killed.
		if err := r.sweepLocks(time.Now()); err != nil {
			return fmt.Errorf("sweep locks: %w", err)
		}
		_, err = r.run(ctx, b.String(), "update-ref", "--stdin", "-z")
	}
	if says(err, "trying to write non-commit object") {
		return fmt.Errorf("%w: a branch would name what is no commit", ErrUnfit)
	}
	return err
}

// says reports whether a git command failed with these words.
func says(err error, words string) bool {
	failure, ok := errors.AsType[*Error](err)
	return ok && strings.Contains(failure.Messages, words)
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
	if err := nostr.CheckRefName(name); err != nil {
		return err
	}
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return nil
		}
	}
	return fmt.Errorf("the reference name %q is not below %s", name, strings.Join(prefixes, " or "))
}
