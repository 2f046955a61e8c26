package repository

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/lib/nip34"
)

// idLength is the length of an object id in hex digits (SHA-1).
const idLength = 40

func isID(id string) bool { return len(id) == idLength && nip34.IsObjectID(id) }

// HasData reports whether data of the repository itself has come: any object of its own, or any
// reference. What lies in the pool belongs to all repositories of the identifier, and tells nothing
// about one of them.
func (r *Repo) HasData(context.Context) (bool, error) {
	own, err := r.HasOwnObjects()
	if own || err != nil {
		return own, err
	}
	return r.hasReferences()
}

// HasOwnObjects reports whether there is any object in the repository's own folder: one that is not
// in the pool yet, or that no accepted event names.
func (r *Repo) HasOwnObjects() (bool, error) {
	packs, err := r.ownPacks()
	if len(packs) > 0 || err != nil {
		return len(packs) > 0, err
	}
	loose, err := r.looseObjects()
	return len(loose) > 0, err
}

// Missing returns those of the object ids that the repository cannot see, in its own folder or in
// the pool, each once, in the order given. What is no object id is refused. As a rule no git is
// started.
func (r *Repo) Missing(ctx context.Context, ids []string) ([]string, error) {
	if err := checkIDs(ids); err != nil {
		return nil, err
	}
	there, err := r.sees(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look up objects: %w", err)
	}
	var missing []string
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		if !there[id] && !seen[id] {
			missing = append(missing, id)
		}
		seen[id] = true
	}
	return missing, nil
}

// sees returns which objects are there. Git is asked only about repositories that borrow from
// elsewhere than their pool, which is none that we have made.
func (r *Repo) sees(ctx context.Context, ids []string) (map[string]bool, error) {
	there := map[string]bool{}
	if len(ids) == 0 || !r.Exists() {
		return there, nil
	}
	for _, from := range []*Repo{r, r.Pool().git} {
		packs, err := from.openIndexes()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			there[id] = there[id] || packs.hasHex(id) || from.hasLoose(id)
		}
		packs.close()
	}
	elsewhere, err := r.borrowsElsewhere()
	if err != nil || !elsewhere {
		return there, err
	}
	types, err := r.Types(ctx, slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return there[id] }))
	for id := range types {
		there[id] = true
	}
	return there, err
}

// borrowsElsewhere reports whether somebody else has told the repository where to look for objects.
func (r *Repo) borrowsElsewhere() (bool, error) {
	content, err := os.ReadFile(r.in("objects", "info", alternatesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSpace(strings.ReplaceAll(string(content), r.alternate(), "")) != "", err
}

// Types returns the type ("commit", "tree", "blob", "tag") of those of the objects that are in the
// repository.
func (r *Repo) Types(ctx context.Context, ids []string) (map[string]string, error) {
	if err := checkIDs(ids); err != nil || !r.Exists() {
		return map[string]string{}, err
	}
	look := r.Command("cat-file", "--buffer", "--batch-check=%(objectname) %(objecttype)")
	var ask, out bytes.Buffer
	for _, id := range ids {
		// Git would take an id of another length for the name of a branch.
		if isID(id) {
			ask.WriteString(id + "\n")
		}
	}
	types := make(map[string]string)
	if ask.Len() == 0 {
		return types, nil
	}
	look.Stdin, look.Stdout = &ask, &out
	if err := look.Run(ctx); err != nil {
		return nil, fmt.Errorf("look up objects: %w", err)
	}
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		id, kind, _ := strings.Cut(lines.Text(), " ")
		if isID(id) && kind != "missing" {
			types[id] = kind
		}
	}
	return types, nil
}

func checkIDs(ids []string) error {
	for _, id := range ids {
		if !nip34.IsObjectID(id) {
			return fmt.Errorf("look up objects: %q is not an object id", id)
		}
	}
	return nil
}

// Size is the number of bytes of all files of the repository. Files that go while it counts are not
// counted.
func (r *Repo) Size() (bytes int64, err error) {
	err = filepath.WalkDir(r.path, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure repository: %w", err)
	}
	return bytes, nil
}
