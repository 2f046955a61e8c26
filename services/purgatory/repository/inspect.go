package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Fsck lets git look through the repository: whatever its references reach must be there and whole,
// in its own folder or in the pool, and so must every object of its own. A fault is an *[Error].
func (r *Repo) Fsck(ctx context.Context) error {
	own, err := r.HasOwnObjects()
	if err != nil {
		return err
	}
	if own {
		return r.fsck(ctx, "--full")
	}
	return r.fsck(ctx, "--connectivity-only") // the pool's objects are looked through with the pool
}

// Fsck lets git look through every object of the pool.
func (p *Pool) Fsck(ctx context.Context) error { return p.git.fsck(ctx, "--full") }

func (r *Repo) fsck(ctx context.Context, option string) error {
	c := r.Command("fsck", option, "--no-dangling", "--no-reflogs", "--no-progress")
	for _, fault := range forgiven {
		c.Config("fsck."+fault, "ignore")
	}
	return c.Run(ctx)
}

// Borrows reports whether the repository borrows from the pool of its identifier.
func (r *Repo) Borrows() (bool, error) {
	content, err := os.ReadFile(r.in("objects", "info", alternatesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read what a repository borrows from: %w", err)
	}
	return strings.Contains("\n"+string(content), "\n"+r.alternate()), nil
}

// CheckTips walks from everything that the pool is known to have to its end. [ErrBroken]: it has
// not all of that, and [Pool.ForgetTips] must be called, because nothing is fetched that is known
// to be there.
func (p *Pool) CheckTips(ctx context.Context) error {
	tips, err := p.readTips()
	if err != nil || len(tips) == 0 {
		return err
	}
	var ids []string
	for _, t := range tips {
		ids = append(ids, t.id)
	}
	slices.Sort(ids)
	list, err := p.git.list(ctx, slices.Compact(ids), nil)
	if err != nil {
		return err
	}
	list.close()
	return nil
}

// ForgetTips forgets what the pool is known to have. It is found out again.
func (p *Pool) ForgetTips() error {
	if err := removeFile(p.git.in(tipsFile)); err != nil {
		return fmt.Errorf("forget the tips of a pool: %w", err)
	}
	return nil
}

// Used reports whether any repository on the disk belongs to the pool.
func (p *Pool) Used() (bool, error) {
	repos, err := p.repositories()
	return len(repos) > 0, err
}

// Strange lists what lies in the root and is none of ours.
func (s *Store) Strange() (names []string, err error) {
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return nil, fmt.Errorf("list the git folder: %w", err)
	}
	for _, entry := range entries {
		_, owner := decodeOwner(entry.Name())
		if !owner && !slices.Contains([]string{newFolder, trashFolder, poolsFolder, prsFolder, emptyFolder + suffix, OrphansFolder, belongsFile}, entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// OrphansFolder is the folder of the root into which `tendril check --repair` puts copies of
// repositories that nobody announces.
const OrphansFolder = "_orphans"

// Git is the git program that works on the repositories.
func (s *Store) Git() string { return s.git }
