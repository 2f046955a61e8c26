package repository

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxKept bounds the objects that one Prune may keep only for references without an event.
const maxKept = 4 << 20

// Pruning is what Prune needs from its caller. Every function must be set.
type Pruning struct {
	// Lock waits until the caller is the only writer of the identifier. It is called three times at
	// most, and held shortly: what takes its time is done between.
	Lock func(ctx context.Context) (unlock func(), err error)
	// Wanted returns the objects that held events name. It is called with the lock held.
	Wanted func(ctx context.Context) ([]string, error)
	// Forget is called with the lock held before objects go: what is remembered of them does not
	// hold any more.
	Forget func()
}

// Pruned is what came of a Prune.
type Pruned struct {
	Looked   bool  // the pool was marked
	Repacked bool  // objects have gone from it
	Removed  bool  // it has gone whole: no repository uses it any more
	Freed    int64 // bytes that the pool has shrunk by
}

// pruning is one Prune under way.
type pruning struct {
	*Pool
	Pruning
	marks orphans
	first roots           // as they were when the work began
	kept  map[string]bool // objects in the pool that only references without an event need, as 20 bytes
}

// roots are the objects that references of the repositories of a pool name.
type roots struct {
	pooled []tip              // those that are in the pool
	others map[*Repo][]string // those that are not, by repository
}

// Prune removes from a marked pool what no reference of any repository needs, and from the
// repositories what they have of their own and neither their references nor held events need. A
// pool that no repository uses is removed.
//
// A repack that must go over the whole pool is prepared while others write, and put in place under
// the lock together with what came meanwhile. Reading goes on all the time. It may be killed at any
// step: the mark stays until all is done.
func (p *Pool) Prune(ctx context.Context, how Pruning) (Pruned, error) {
	w := &pruning{Pool: p, Pruning: how, kept: map[string]bool{}}
	out, err := w.run(ctx)
	if err != nil {
		return out, fmt.Errorf("prune the pool of %q: %w", p.identifier, err)
	}
	return out, nil
}

func (w *pruning) run(ctx context.Context) (out Pruned, err error) {
	more, err := w.begin(ctx, &out)
	if err != nil || !more {
		return out, err
	}
	quarantine, err := w.git.quarantine()
	if err != nil {
		return out, err
	}
	defer os.RemoveAll(quarantine)
	orphaned, err := w.prepare(withoutHurry(ctx), quarantine)
	if err != nil {
		return out, err
	}
	if !orphaned {
		return out, w.finish(ctx)
	}
	err = w.swap(ctx, quarantine, &out)
	return out, err
}

// prepare packs what the pool is to have, and reports whether anything else is in it. No lock is
// held.
func (w *pruning) prepare(ctx context.Context, quarantine string) (orphaned bool, err error) {
	if err := w.keep(ctx, w.first, w.first.ids(), quarantine, mayHaveChanged); err != nil {
		return false, err
	}
	if orphaned, err = w.orphaned(ctx); err != nil || !orphaned {
		return false, err
	}
	if len(w.first.pooled) > 0 {
		if err := w.packRevs(ctx, quarantine, w.first.ids(), nil); err != nil {
			return false, err
		}
	}
	return true, syncTree(quarantine)
}

// begin takes the marks, clears the repositories of what they do not need, and looks at the
// references. more: there may be something to do in the pool itself.
func (w *pruning) begin(ctx context.Context, out *Pruned) (more bool, err error) {
	unlock, err := w.Lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if w.marks, out.Looked, err = w.takeMarks(); err != nil || !out.Looked {
		return false, err
	}
	repos, err := w.repositories()
	if err != nil {
		return false, err
	}
	if len(repos) == 0 {
		w.Forget()
		out.Removed = true
		return false, w.remove()
	}
	if err := w.sweep(); err != nil {
		return false, err
	}
	wanted, err := w.Wanted(ctx)
	if err != nil {
		return false, err
	}
	w.Forget()
	for _, r := range repos {
		if err := r.slim(ctx, wanted); err != nil {
			return false, fmt.Errorf("%s: %w", r.ref, err)
		}
	}
	w.first, err = w.roots(ctx, repos)
	return err == nil, err
}

// sweep removes what a killed Prune or Promote left in the pool. Nobody else is at work there.
func (p *Pool) sweep() error {
	folders, err := os.ReadDir(p.git.in("objects"))
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if strings.HasPrefix(folder.Name(), quarantinePrefix) {
			if err := os.RemoveAll(p.git.in("objects", folder.Name())); err != nil {
				return err
			}
		}
	}
	files, err := os.ReadDir(p.git.path)
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), smallPrefix) {
			if err := removeFile(p.git.in(file.Name())); err != nil {
				return err
			}
		}
	}
	return p.git.removeUnfinished(func(fs.DirEntry) bool { return true })
}

// roots looks at all references.
func (p *Pool) roots(ctx context.Context, repos []*Repo) (roots, error) {
	pool, err := p.git.openIndexes()
	if err != nil {
		return roots{}, err
	}
	defer pool.close()
	all := roots{others: map[*Repo][]string{}}
	for _, r := range repos {
		ids, err := r.Named(ctx, nil)
		if err != nil {
			return roots{}, fmt.Errorf("%s: %w", r.ref, err)
		}
		for _, id := range ids {
			if pool.hasHex(id) {
				all.pooled = append(all.pooled, tip{r.ref.PubKey, id})
			} else {
				all.others[r] = append(all.others[r], id)
			}
		}
	}
	return all, nil
}

// ids returns the roots that are in the pool, each once.
func (r roots) ids() []string {
	ids := make([]string, len(r.pooled))
	for i, t := range r.pooled {
		ids[i] = t.id
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// mayHaveChanged passes over a repository that cannot be read. It is for work without the lock: the
// repository may have been removed or made anew since its references were looked at, or references
// and what only they needed may have gone. What it needs is looked for again under the lock before
// anything goes (swap).
func mayHaveChanged(ctx context.Context, err error) error {
	if ctx.Err() != nil || Unwritable(err) {
		return err
	}
	return nil
}

// mustBeThere is for work under the lock: a repository that cannot be read ends it.
func mustBeThere(_ context.Context, err error) error { return err }

// keep packs what references outside the pool need from the pool and no reference inside does.
// unreadable decides about a repository whose objects cannot be listed; nil passes over it.
func (w *pruning) keep(
	ctx context.Context, at roots, known []string, quarantine string,
	unreadable func(ctx context.Context, err error) error,
) error {
	pool, err := w.git.openIndexes()
	if err != nil {
		return err
	}
	defer pool.close()
	var ids strings.Builder
	for r, tips := range at.others {
		needs, err := r.list(ctx, tips, known)
		if err != nil {
			if err = unreadable(ctx, err); err != nil {
				return fmt.Errorf("%s: %w", r.ref, err)
			}
			continue
		}
		err = needs.each(func(id []byte) bool {
			if pool.has(id) && !w.kept[string(id)] {
				w.kept[string(id)] = true
				ids.WriteString(hex.EncodeToString(id) + "\n")
			}
			return len(w.kept) <= maxKept
		})
		needs.close()
		if err != nil {
			return err
		}
		if len(w.kept) > maxKept {
			return errors.New("references that wait for their events need too much of it")
		}
	}
	if ids.Len() == 0 {
		return nil
	}
	return w.git.packObjects(ctx, quarantine, strings.NewReader(ids.String()))
}

// orphaned reports whether there is anything in the pool that nothing needs, of what the marks
// name.
func (w *pruning) orphaned(ctx context.Context) (bool, error) {
	if w.marks.all {
		return true, nil
	}
	pool, err := w.git.openIndexes()
	if err != nil {
		return false, err
	}
	there := slices.DeleteFunc(slices.Clone(w.marks.ids), func(id string) bool { return !pool.hasHex(id) })
	pool.close()
	if len(there) == 0 {
		return false, nil
	}
	reached, err := w.git.list(ctx, there, w.first.ids())
	if errors.Is(err, ErrBroken) {
		return true, nil // a Prune was killed in the middle of it
	}
	if err != nil {
		return false, err
	}
	defer reached.close()
	found := false
	err = reached.each(func(id []byte) bool {
		found = !w.kept[string(id)]
		return !found
	})
	return found, err
}

// packRevs packs what tips reach and known ids do not.
func (w *pruning) packRevs(ctx context.Context, quarantine string, tips, known []string) error {
	var revs strings.Builder
	for _, id := range tips {
		revs.WriteString(id + "\n")
	}
	for _, id := range known {
		revs.WriteString("^" + id + "\n")
	}
	return w.git.packObjects(ctx, quarantine, strings.NewReader(revs.String()), "--revs")
}

// swap replaces the packs of the pool by those in quarantine, to which it adds what references have
// come to need meanwhile.
func (w *pruning) swap(ctx context.Context, quarantine string, out *Pruned) error {
	unlock, err := w.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	repos, err := w.repositories()
	if err != nil {
		return err
	}
	now, err := w.roots(ctx, repos)
	if err != nil {
		return err
	}
	packed := w.first.ids()
	fresh := slices.DeleteFunc(now.ids(), func(id string) bool { _, was := slices.BinarySearch(packed, id); return was })
	if len(fresh) > 0 {
		if err := w.packRevs(ctx, quarantine, fresh, packed); err != nil {
			return err
		}
	}
	if err := w.keep(ctx, now, slices.Concat(packed, fresh), quarantine, mustBeThere); err != nil {
		return err
	}
	w.Forget()
	before, err := w.git.packBytes()
	if err != nil {
		return err
	}
	if err := w.replace(quarantine, now); err != nil {
		return err
	}
	after, err := w.git.packBytes()
	out.Repacked, out.Freed = true, max(0, before-after)
	return errors.Join(err, w.unmark())
}

// replace shows the packs in quarantine and removes all others. What is known of the pool's tips
// changes in between, so that it never promises what has gone.
func (w *pruning) replace(quarantine string, now roots) error {
	files, err := os.ReadDir(filepath.Join(quarantine, packsFolder))
	if err != nil {
		return err
	}
	fresh := map[string]bool{}
	for _, file := range files {
		fresh[strings.TrimSuffix(file.Name(), filepath.Ext(file.Name()))] = true
	}
	if err := w.git.install(quarantine); err != nil {
		return err
	}
	if err := w.git.store.before("renew the tips"); err != nil {
		return err
	}
	if err := w.writeTips(now.pooled); err != nil {
		return err
	}
	if files, err = os.ReadDir(w.git.in("objects", packsFolder)); err != nil {
		return err
	}
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), filepath.Ext(file.Name()))
		if strings.HasPrefix(name, packPrefix) && !fresh[name] {
			if err := w.git.store.before("remove an old pack"); err != nil {
				return err
			}
			if err := w.git.removePack(name); err != nil {
				return err
			}
		}
	}
	return syncPath(w.git.in("objects", packsFolder))
}

// finish ends a Prune that found nothing to remove.
func (w *pruning) finish(ctx context.Context) error {
	unlock, err := w.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return w.unmark()
}

// unmark removes the marks that the work began with. What is kept only for references without an
// event is marked again: it goes when they go.
func (w *pruning) unmark() error {
	if len(w.kept) > 0 {
		ids := make([]string, 0, len(w.kept))
		for id := range w.kept {
			ids = append(ids, hex.EncodeToString([]byte(id)))
		}
		if err := w.mark(ids); err != nil {
			return err
		}
	}
	if err := w.git.store.before("remove the mark"); err != nil {
		return err
	}
	return removeFile(w.git.in(pruningFile))
}

// Bytes is the size of the pool's packs.
func (p *Pool) Bytes() (int64, error) { return p.git.packBytes() }

// packBytes is the size of all files in the folder of packs.
func (r *Repo) packBytes() (bytes int64, err error) {
	files, err := os.ReadDir(r.in("objects", packsFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	for _, file := range files {
		if info, err := file.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
	}
	return bytes, nil
}
