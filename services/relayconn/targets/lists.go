package targets

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"tendril.dev/lib/target"
)

const (
	// listPause is the wait before it is tried again to read a list of root events.
	listPause = 200 * time.Millisecond
	// mostUnsettled is how often a list is read again that is being written, before what is known
	// of it has to do: whoever wrote it may have stopped in the middle.
	mostUnsettled = 50
)

// list reads the list that a target names, or the newest one of the repository where that is not
// there any more: a target that names the newest is on its way then. It tries until ctx ends; ok
// says that it has not.
func (f *Follower) list(ctx context.Context, ref string, at uint64, log *slog.Logger) (ids []target.ID, ok bool) {
	for unsettled, told := 0, false; ; {
		ids, whole, err := f.lists.At(ctx, ref, at)
		if err == nil && !whole {
			ids, whole, err = f.lists.Newest(ctx, ref)
			if unsettled++; err == nil && !whole && unsettled == mostUnsettled {
				log.Warn("the list of a repository's root events is not whole: those are not asked for until discovery has written it anew", "repository", ref, "message", at)
				return nil, true
			}
		}
		switch {
		case err == nil && whole:
			if len(ids) == 0 && unsettled > 0 {
				log.Warn("a list of root events is not there: those are not asked for until discovery has written it anew", "repository", ref, "message", at)
			}
			return ids, true
		case err != nil && !told && ctx.Err() == nil:
			told = true
			log.Warn("a list of root events cannot be read, trying again", "repository", ref, "error", err)
		}
		select {
		case <-time.After(listPause):
		case <-ctx.Done():
			return nil, false
		}
	}
}

// showPast lets be seen what the target was at the revision asked for. Repositories whose lists
// have been replaced since are left away: nobody knows any more what was confirmed of them.
func (f *Follower) showPast(ctx context.Context, log *slog.Logger) bool {
	past := f.asked.target
	found := map[string][]target.ID{}
	for ref, n := range f.asked.named {
		if _, has := past.Repos[ref]; !has {
			continue
		}
		list, whole, err := f.lists.At(ctx, ref, n.At)
		if ctx.Err() != nil {
			return false
		}
		if err != nil {
			log.Warn("a list of root events cannot be read: what was confirmed of it is asked for again", "repository", ref, "error", err)
		}
		if err != nil || !whole {
			past.Repos = maps.Clone(past.Repos)
			delete(past.Repos, ref)
			continue
		}
		found[ref] = n.Roots(list)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past, f.asked = past.With(found), told{}
	return true
}
