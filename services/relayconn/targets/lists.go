package targets

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"tendril.dev/lib/target"
)

const (
	// listPause is the wait before it is tried again to read a list of root events. Each further
	// wait is twice as long.
	listPause = 200 * time.Millisecond
	// mostTries is how often a list is read before a new follower's target is seen without it:
	// whoever writes it may have stopped in the middle.
	mostTries = 6
	// lookAgain is the wait before lists are read again that the target is seen without.
	lookAgain = 5 * time.Second
)

// heldList is a list that a target names, as it was read.
type heldList struct {
	at  uint64
	ids []target.ID
}

// list reads the list that a target names, or the newest one of the repository where that is not
// there any more: a target that names the newest is on its way then. It tries so many times. whole
// says that there is one and all of it was read; the error, that the bus does not answer.
func (f *Follower) list(ctx context.Context, ref string, at uint64, tries int, log *slog.Logger) (ids []target.ID, whole bool, err error) {
	for pause := listPause; ; pause *= 2 {
		ids, whole, err = f.lists.At(ctx, ref, at)
		if err == nil && !whole {
			ids, whole, err = f.lists.Newest(ctx, ref)
			whole = whole && len(ids) > 0 // it was withdrawn, or there never was one
		}
		if err == nil && whole {
			return ids, true, nil
		}
		if tries--; tries <= 0 || ctx.Err() != nil {
			if !f.told && ctx.Err() == nil {
				f.told = true
				log.Warn("a list of root events cannot be read or is not whole: those that are new in it are not asked for yet, trying again",
					"repository", ref, "message", at, "error", err)
			}
			return nil, false, err
		}
		f.over() // others need not wait for it
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// show lets the target be seen that was read last, with the lists that it names. A repository whose
// list cannot be read keeps the root events that were seen last, and the revision stays, so that
// nobody takes the others for confirmed; lists are read again after a while then. It reports
// whether that was before ctx ended.
func (f *Follower) show(ctx context.Context, tries int, log *slog.Logger) bool {
	if f.again != nil {
		f.again.Stop()
		f.again = nil
	}
	found, held := make(map[string][]target.ID, len(f.last.named)), make(map[string]heldList, len(f.last.named))
	whole, away := true, false
	for ref, n := range f.last.named {
		list, known := f.held[ref]
		if !known || list.at != n.At {
			var ids []target.ID
			read := false
			if !away { // or each list would be waited for
				var err error
				ids, read, err = f.list(ctx, ref, n.At, tries, log)
				away = err != nil
			}
			if ctx.Err() != nil {
				return false
			}
			if !read {
				found[ref], whole, tries = f.target.Repos[ref].Roots, false, 1
				continue
			}
			list = heldList{n.At, ids}
		}
		held[ref] = list
		found[ref] = n.Roots(list.ids)
	}
	f.held = held
	f.mu.Lock()
	f.target = f.last.target.With(found)
	if whole {
		f.revision, f.told = f.last.revision, false
	}
	f.mu.Unlock()
	select {
	case f.Changed <- struct{}{}:
	default:
	}
	if !whole {
		f.again = time.AfterFunc(lookAgain, func() {
			f.reading.Lock()
			defer f.reading.Unlock()
			if ctx.Err() == nil {
				f.show(ctx, 1, log)
			}
		})
	}
	return true
}

// stop ends what looks again.
func (f *Follower) stop() {
	f.reading.Lock()
	defer f.reading.Unlock()
	if f.again != nil {
		f.again.Stop()
	}
}

// showPast lets be seen what the target was at the revision asked for. Repositories whose lists
// have been replaced since, or were not known to who confirmed them, are left away: nobody knows
// what was confirmed of them.
func (f *Follower) showPast(ctx context.Context, log *slog.Logger) bool {
	past := f.asked.target
	found := map[string][]target.ID{}
	for ref, n := range f.asked.named {
		if _, has := past.Repos[ref]; !has {
			continue
		}
		var list []target.ID
		whole, err := false, error(nil)
		if !f.Unlisted {
			list, whole, err = f.lists.At(ctx, ref, n.At)
		}
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
