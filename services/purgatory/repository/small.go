package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/purgatory/slots"
	"tendril.dev/services/purgatory/smallpack"
)

// withSmall calls ask with the packs that the repository sees, its own and its pool's, if they are
// small. That is for what can be told without git while a repository is new. It returns false where
// git must be asked, which alone knows what to say of a repository that is not as we make them. As
// many may ask at once as packs are looked through at once: that bounds the memory.
func (r *Repo) withSmall(ctx context.Context, ask func(*smallpack.Set) error) bool {
	release, err := r.store.scans.Acquire(ctx, slots.Work, "", 1)
	if err != nil {
		return false
	}
	defer release()
	set, err := r.small()
	return err == nil && ask(set) == nil
}

// small reads the packs that the repository sees.
func (r *Repo) small() (*smallpack.Set, error) {
	if head, err := r.Head(); err != nil || nip34.CheckRefName(head) != nil {
		return nil, errors.Join(smallpack.ErrNotSmall, err)
	}
	// Without that line git does not see the pool, and with another one it sees more.
	alternates, err := os.ReadFile(r.in("objects", "info", alternatesFile))
	if err != nil {
		return nil, err
	}
	if string(alternates) != r.alternate() {
		return nil, fmt.Errorf("%w: it borrows not only from its pool", smallpack.ErrNotSmall)
	}
	if _, err := os.Lstat(r.in("shallow")); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: its history is cut off", smallpack.ErrNotSmall)
	}
	set := &smallpack.Set{}
	for _, from := range []*Repo{r, r.Pool().git} {
		names, err := from.ownPacks()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if err := set.Add(from.in("objects", packsFolder, name)); err != nil {
				return nil, err
			}
		}
	}
	return set, nil
}

// smallKinds returns the types of objects, as Types does, if all of them are in small packs.
func (r *Repo) smallKinds(ctx context.Context, ids []string) (types map[string]string, all bool) {
	types = make(map[string]string, len(ids))
	all = r.withSmall(ctx, func(set *smallpack.Set) error {
		for _, text := range ids {
			id, ok := smallpack.ParseID(text)
			if !ok {
				return smallpack.ErrNotSmall
			}
			kind, found, err := set.Kind(id)
			if !found || err != nil {
				return errors.Join(smallpack.ErrNotSmall, err)
			}
			types[text] = kind.String()
		}
		return nil
	})
	if !all {
		return nil, false
	}
	return types, true
}

// smallList is list where nothing is known to be in the pool and everything is in small packs. ok
// is false if it is not, or something is not there.
func (r *Repo) smallList(ctx context.Context, tips []string) (list *objectList, ok bool) {
	ids := make([]smallpack.ID, len(tips))
	for i, tip := range tips {
		if ids[i], ok = smallpack.ParseID(tip); !ok {
			return nil, false
		}
	}
	var reached []smallpack.ID
	ok = r.withSmall(ctx, func(set *smallpack.Set) (err error) {
		reached, err = set.Walk(ids)
		return err
	})
	if !ok {
		return nil, false
	}
	var lines strings.Builder
	for _, id := range reached {
		lines.WriteString(id.String() + "\n")
	}
	return &objectList{ids: strings.NewReader(lines.String()), count: len(reached), revs: strings.Join(tips, "\n") + "\n"}, true
}

// maxCreated is how many references are created without git. More are rare, and one process is
// little beside them.
const maxCreated = 64

// create makes references that are not there yet, all of them or none, as git does it: each is
// written to a lock file, which only one can make, and all of these are renamed. done is false, and
// nothing has changed, where git has to be asked: references that are there or were packed, locks,
// and names of which one is the folder of another. The objects must be there.
func (r *Repo) create(changes []refChange) (done bool, err error) {
	if len(changes) > maxCreated {
		return false, nil
	}
	names := map[string]bool{}
	for _, c := range changes {
		if c.from != "" || c.to == "" {
			return false, nil
		}
		names[c.name] = true
	}
	for _, c := range changes {
		if isFolderOfAny(c.name, names) {
			return false, nil
		}
	}
	return r.createLocked(changes)
}

func (r *Repo) createLocked(changes []refChange) (done bool, err error) {
	var locks []string // that we hold
	defer func() {
		for _, lock := range locks {
			err = errors.Join(err, removeFile(lock))
		}
	}()
	for _, c := range changes {
		path := r.in(filepath.FromSlash(c.name))
		lock, err := lockRef(path, c.to)
		if lock != "" {
			locks = append(locks, lock)
		}
		if err != nil {
			return false, nil
		}
	}
	// What we have the lock of, nobody else changes any more.
	if _, err := os.Lstat(r.in("packed-refs")); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, c := range changes {
		if _, err := os.Lstat(r.in(filepath.FromSlash(c.name))); !errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	for len(locks) > 0 {
		if err := os.Rename(locks[0], strings.TrimSuffix(locks[0], lockSuffix)); err != nil {
			return true, fmt.Errorf("create references: %w", err)
		}
		locks = locks[1:] // it may be another's already
	}
	return true, nil
}

// lockSuffix ends the names of lock files.
const lockSuffix = ".lock"

// lockRef writes the lock file of a reference, durably. It returns its path if it made one.
func lockRef(path, id string) (lock string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path+lockSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(id + "\n")
	return path + lockSuffix, errors.Join(err, f.Sync(), f.Close())
}

// apply makes changes of references in one transaction, with git only where that is needed. types
// are those of the objects that are known.
func (r *Repo) apply(ctx context.Context, changes []refChange, types map[string]string) error {
	for _, c := range changes {
		if types[c.to] == "" {
			return r.transaction(ctx, changes)
		}
	}
	done, err := r.create(changes)
	if done || err != nil {
		return err
	}
	return r.transaction(ctx, changes)
}
