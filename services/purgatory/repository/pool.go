package repository

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/lib/nip34"
)

const (
	// poolsFolder is the folder of the root in which the pools lie. No npub is named so.
	poolsFolder = "_pools"
	// alternatesFile tells git in which other folder to look for objects.
	alternatesFile = "alternates"

	// orphansFile of a pool names objects that references have left, and that may be in the way
	// now: a pool with such a file must be pruned. pruningFile is the same while that happens.
	orphansFile = "orphans"
	pruningFile = "orphans.pruning"
	// maxOrphans bounds either file in bytes; beyond it the whole pool is looked through.
	maxOrphans = 1 << 20

	// tipsFile of a pool lists commits and tags that are in it with all that they reach, newest
	// last: "<owner> <id>".
	tipsFile = "tips"
	// maxTips bounds the lines of that file. What is not in it is only looked for at greater cost.
	maxTips = 50_000
)

const (
	everything = "*" // in a file of orphans: anything may be in the way
	ownObjects = "-" // a repository has objects of its own, which may be
)

// Pool holds the objects that accepted events name of all repositories of one identifier, each
// once. The repositories borrow them (objects/info/alternates). A repository keeps for itself only
// what no accepted event has named yet.
//
// Whoever changes a pool has the lock of its identifier. Readers need none.
type Pool struct {
	git        *Repo // the bare repository that it is to git, without any reference
	identifier string
}

// Pool names the pool of an identifier. It does no I/O.
func (s *Store) Pool(identifier string) *Pool {
	path := filepath.Join(s.root, poolsFolder, nip34.EncodeIdentifier(identifier)+suffix)
	return &Pool{git: &Repo{store: s, ref: nip34.RepoRef{Identifier: identifier}, path: path}, identifier: identifier}
}

// Pool is the pool from which the repository borrows.
func (r *Repo) Pool() *Pool { return r.store.Pool(r.ref.Identifier) }

// Path is the folder of the pool.
func (p *Pool) Path() string { return p.git.path }

// Exists reports whether the pool is on disk.
func (p *Pool) Exists() bool { return p.git.Exists() }

// Tidy brings the packs of the pool together where there are many, as Repo.Tidy does.
func (p *Pool) Tidy(ctx context.Context) (done bool, err error) {
	if !p.Exists() {
		return false, nil
	}
	return p.git.Tidy(ctx)
}

// Pools returns the identifiers that have a pool on disk. An error ends it.
func (s *Store) Pools(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		folders, err := os.ReadDir(filepath.Join(s.root, poolsFolder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			yield("", fmt.Errorf("list pools: %w", err))
			return
		}
		for _, folder := range folders {
			if ctx.Err() != nil {
				yield("", ctx.Err())
				return
			}
			if identifier, ok := decodeFolder(folder); ok && !yield(identifier, nil) {
				return
			}
		}
	}
}

// ensure makes the pool if it is not there.
func (p *Pool) ensure(ctx context.Context) error {
	if p.Exists() {
		return nil
	}
	if err := p.git.make(ctx, true, nil); err != nil {
		return fmt.Errorf("make pool: %w", err)
	}
	return nil
}

// alternate is the line by which the repository's objects/info/alternates names its pool. It is
// relative to the repository's objects folder, so that the root can be moved.
func (r *Repo) alternate() string {
	up := "../../../"
	if r.prs {
		up += "../"
	}
	return up + poolsFolder + "/" + filepath.Base(r.path) + "/objects\n"
}

// borrow lets the repository see the objects of its pool, which is made if it is not there. What
// else the repository borrows from is left as it is.
func (r *Repo) borrow(ctx context.Context) error {
	pool := r.Pool()
	if err := pool.ensure(ctx); err != nil {
		return err
	}
	path := r.in("objects", "info", alternatesFile)
	now, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("borrow from the pool: %w", err)
	}
	line := r.alternate()
	if strings.Contains("\n"+string(now), "\n"+line) {
		return nil
	}
	if len(now) > 0 && !strings.HasSuffix(string(now), "\n") {
		line = "\n" + line
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("borrow from the pool: %w", err)
	}
	if err := writeDurably(path, string(now)+line); err != nil {
		return fmt.Errorf("borrow from the pool: %w", err)
	}
	return nil
}

// repositories returns the repositories on disk that use the pool, contributors' included: what
// lies there counts, whatever is announced.
func (p *Pool) repositories() ([]*Repo, error) {
	var all []*Repo
	for _, prs := range []bool{false, true} {
		owners, err := os.ReadDir(p.git.store.folder(prs))
		if err != nil && !(prs && errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("look for the repositories of a pool: %w", err)
		}
		for _, owner := range owners {
			key, ok := decodeOwner(owner.Name())
			if !ok {
				continue
			}
			r := &Repo{
				store: p.git.store, ref: nip34.RepoRef{PubKey: key, Identifier: p.identifier}, prs: prs,
				path: filepath.Join(p.git.store.folder(prs), owner.Name(), filepath.Base(p.git.path)),
			}
			_, err := os.Lstat(r.path)
			switch {
			case err == nil:
				all = append(all, r)
			case !errors.Is(err, fs.ErrNotExist):
				return nil, fmt.Errorf("look for the repositories of a pool: %w", err)
			}
		}
	}
	return all, nil
}

// Places returns where the repositories on disk lie that use the pool, contributors' included.
func (p *Pool) Places() ([]Place, error) {
	repos, err := p.repositories()
	places := make([]Place, len(repos))
	for i, r := range repos {
		places[i] = r.Place()
	}
	return places, err
}

// Marked reports whether the pool must be pruned.
func (p *Pool) Marked() bool {
	for _, name := range []string{orphansFile, pruningFile} {
		if _, err := os.Lstat(p.git.in(name)); err == nil {
			return true
		}
	}
	return false
}

// Orphan notes durably that references are about to leave objects, so that a later Prune looks
// whether anything still needs them. It is called before the references change.
func (p *Pool) Orphan(ids ...string) error {
	return p.mark(slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !isID(id) }))
}

// OrphanOwn notes durably that a repository has objects of its own that may not be needed.
func (p *Pool) OrphanOwn() error {
	content, err := os.ReadFile(p.git.in(orphansFile))
	if err == nil && parseOrphans(string(content)).own {
		return nil
	}
	return p.mark([]string{ownObjects})
}

func (p *Pool) mark(words []string) error {
	if len(words) == 0 || !p.Exists() {
		return nil // nothing can be in the way in a pool that is not there
	}
	path := p.git.in(orphansFile)
	info, err := os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	lines := strings.Join(words, "\n") + "\n"
	if size := int64(len(lines)); size > maxOrphans || err == nil && info.Size()+size > maxOrphans {
		lines = everything + "\n"
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("mark a pool for pruning: %w", err)
	}
	_, err = f.WriteString(lines)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil && fresh {
		err = syncPath(p.git.path)
	}
	if err != nil {
		return fmt.Errorf("mark a pool for pruning: %w", err)
	}
	return nil
}

// Unmark removes the marks of a pool where all that they name is named by references of these
// repositories, which have nothing of their own, and reports whether there is no mark then. That is
// as good as a Prune, which has to look for everybody who uses the pool: what was marked before a
// first state was applied is mostly what that state names. The caller has the identifier's lock.
func (p *Pool) Unmark(ctx context.Context, named []*Repo) (bool, error) {
	if _, err := os.Lstat(p.git.in(pruningFile)); !errors.Is(err, fs.ErrNotExist) {
		return false, err // a Prune was cut off; nil: there is such a file
	}
	content, err := os.ReadFile(p.git.in(orphansFile))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the marks of a pool: %w", err)
	}
	marks := parseOrphans(string(content))
	if marks.all || marks.own {
		return false, nil
	}
	needed := map[string]bool{}
	for _, r := range named {
		if r.Pool().Path() != p.Path() || !r.Exists() {
			continue
		}
		own, err := r.HasOwnObjects()
		if own || err != nil {
			return false, err
		}
		ids, err := r.Named(ctx, nil)
		if err != nil {
			return false, fmt.Errorf("%s: %w", r.ref, err)
		}
		for _, id := range ids {
			needed[id] = true
		}
	}
	if slices.ContainsFunc(marks.ids, func(id string) bool { return !needed[id] }) {
		return false, nil
	}
	return true, removeFile(p.git.in(orphansFile))
}

// orphans is what a pool's marks say.
type orphans struct {
	ids []string
	own bool // a repository has objects of its own that may be in the way
	all bool // anything may be in the way
}

// takeMarks begins to prune: what was noted so far is read and moved to a file of its own, so that
// what is noted from now on is told apart. There was nothing if is is false.
func (p *Pool) takeMarks() (o orphans, is bool, err error) {
	var lines strings.Builder
	for _, name := range []string{pruningFile, orphansFile} {
		content, err := os.ReadFile(p.git.in(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return o, false, fmt.Errorf("read the marks of a pool: %w", err)
		}
		is = true
		lines.Write(content)
		lines.WriteByte('\n')
	}
	if !is {
		return o, false, nil
	}
	if o = parseOrphans(lines.String()); o.all {
		lines.Reset()
		lines.WriteString(everything + "\n")
	}
	if err := writeDurably(p.git.in(pruningFile), lines.String()); err != nil {
		return o, false, fmt.Errorf("take the marks of a pool: %w", err)
	}
	if err := removeFile(p.git.in(orphansFile)); err != nil {
		return o, false, fmt.Errorf("take the marks of a pool: %w", err)
	}
	return o, true, nil
}

// parseOrphans reads marks. A line that is not whole, or makes no sense, could have been any
// object.
func parseOrphans(content string) (o orphans) {
	o.all = len(content) > 2*maxOrphans
	seen := map[string]bool{}
	for line := range strings.Lines(content) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case isID(line):
			if !seen[line] {
				o.ids = append(o.ids, line)
			}
			seen[line] = true
		case line == ownObjects:
			o.own = true
		case line != "":
			o.all = true
		}
	}
	return o
}

// tip is an object that is in the pool with all that it reaches, and the owner in whose repository
// it was found so.
type tip struct{ owner, id string }

// readTips returns the tips that are known, newest last. A line that is not whole is passed over.
func (p *Pool) readTips() ([]tip, error) {
	f, err := os.Open(p.git.in(tipsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the tips of a pool: %w", err)
	}
	defer f.Close()
	var tips []tip
	for lines := bufio.NewScanner(io.LimitReader(f, 4*maxTips*(64+1+idLength+1))); lines.Scan(); {
		owner, id, _ := strings.Cut(lines.Text(), " ")
		if nip34.IsHex64(owner) && isID(id) {
			tips = append(tips, tip{owner, id})
		}
	}
	return tips, nil
}

// writeTips replaces the tips that are known.
func (p *Pool) writeTips(tips []tip) error {
	var lines strings.Builder
	for _, t := range tips[max(0, len(tips)-maxTips):] {
		lines.WriteString(t.owner + " " + t.id + "\n")
	}
	if err := writeDurably(p.git.in(tipsFile), lines.String()); err != nil {
		return fmt.Errorf("write the tips of a pool: %w", err)
	}
	return nil
}

// remove takes away a pool that no repository uses.
func (p *Pool) remove() error { return p.git.discard("pool-") }

// smallPrefix begins the names of small files that are being written.
const smallPrefix = ".tmp-small-"

// writeDurably replaces a small file, at once and on the disk.
func writeDurably(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), smallPrefix)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, removeFile(f.Name()))
	}
	return syncPath(filepath.Dir(path))
}
