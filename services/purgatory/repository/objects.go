package repository

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// idLength is the length of an object id in hex digits (SHA-1).
const idLength = 40

const (
	packFolder  = "pack" // below objects/
	indexSuffix = ".idx"
	// cruftSuffix ends the name of the file that makes a pack one of objects that nothing reaches.
	cruftSuffix = ".mtimes"
)

// ErrBroken are objects that are there while something that they link to is not.
var ErrBroken = errors.New("objects that these link to are missing")

func isID(id string) bool { return len(id) == idLength && nostr.IsObjectID(id) }

// HasData reports whether anything has come: an object or a reference. It starts no git.
func (r *Repo) HasData(context.Context) (bool, error) {
	has, err := r.HasObjects()
	if has || err != nil {
		return has, err
	}
	return r.hasReferences()
}

// HasObjects reports whether there is any object. It starts no git.
func (r *Repo) HasObjects() (bool, error) {
	packs, err := r.packs()
	if len(packs) > 0 || err != nil {
		return len(packs) > 0, err
	}
	folders, err := readDir(r.in("objects"))
	if err != nil {
		return false, fmt.Errorf("look for objects: %w", err)
	}
	return slices.ContainsFunc(folders, func(folder fs.DirEntry) bool { return len(folder.Name()) == 2 }), nil
}

// packs returns the names, without suffix, of the packs that git sees.
func (r *Repo) packs() ([]string, error) {
	files, err := readDir(r.in("objects", packFolder))
	if err != nil {
		return nil, fmt.Errorf("look for packs: %w", err)
	}
	var names []string
	for _, file := range files {
		if name, is := strings.CutSuffix(file.Name(), indexSuffix); is {
			names = append(names, name)
		}
	}
	return names, nil
}

// Missing returns those of the object ids that are not in the repository, each once, in the order
// given. What is no object id is refused. It starts no git where there are no objects at all.
func (r *Repo) Missing(ctx context.Context, ids []string) ([]string, error) {
	for _, id := range ids {
		if !nostr.IsObjectID(id) {
			return nil, fmt.Errorf("look up objects: %q is not an object id", id)
		}
	}
	ids = unique(ids)
	has, err := r.HasObjects()
	if err != nil || !has || len(ids) == 0 {
		return ids, err
	}
	types, err := r.Types(ctx, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id string) bool { return types[id] != "" }), nil
}

// unique returns a copy without what comes twice.
func unique(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		before := seen[id]
		seen[id] = true
		return before
	})
}

// Types returns the type ("commit", "tree", "blob", "tag") of those of the objects that are in the
// repository.
func (r *Repo) Types(ctx context.Context, ids []string) (map[string]string, error) {
	return r.types(ctx, ids, r.Command)
}

// types asks a cat-file that command prepares.
func (r *Repo) types(ctx context.Context, ids []string, command func(args ...string) *Command) (map[string]string, error) {
	var ask, out bytes.Buffer
	for _, id := range ids {
		// Git would take an id of another length for the name of a branch.
		if isID(id) {
			ask.WriteString(id + "\n")
		}
	}
	types := make(map[string]string)
	if ask.Len() == 0 || !r.Exists() {
		return types, nil
	}
	look := command("cat-file", "--buffer", "--batch-check=%(objectname) %(objecttype)")
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

// connected walks from objects to the end of all that they reach and no reference does. ErrBroken:
// something is missing on the way.
func (r *Repo) connected(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	walk := r.Command("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all")
	walk.Stdin = strings.NewReader(strings.Join(ids, "\n") + "\n")
	err := walk.Run(ctx)
	if failure, ok := errors.AsType[*Error](err); ok && isExit(failure.Err) && !Unwritable(err) {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return err
}

// Bytes is the size of the repository's packs.
func (r *Repo) Bytes() (bytes int64, err error) {
	files, err := readDir(r.in("objects", packFolder))
	if err != nil {
		return 0, fmt.Errorf("measure packs: %w", err)
	}
	for _, file := range files {
		if info, err := file.Info(); err == nil && strings.HasSuffix(file.Name(), ".pack") {
			bytes += info.Size()
		}
	}
	return bytes, nil
}

// Fsck lets git look through the repository: whatever its references reach must be there, and every
// object must be whole. A fault is an *[Error].
func (r *Repo) Fsck(ctx context.Context) error {
	c := r.Command("fsck", "--full", "--no-dangling", "--no-reflogs", "--no-progress")
	for _, fault := range forgiven {
		c.Config("fsck."+fault, "ignore")
	}
	return c.Run(ctx)
}
