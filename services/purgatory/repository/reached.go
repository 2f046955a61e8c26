package repository

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Unreached returns those of some ids that are no commit which a reference reaches, in the order
// given. An object that only lies in a repository is no data of anybody's: its owner may have removed
// it, and housekeeping may not have been there yet. It starts no git for what a reference names.
func (r *Repo) Unreached(ctx context.Context, ids []string) (unreached []string, err error) {
	refs, err := r.Refs()
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, id := range refs.ByName {
		named[id] = true
	}
	for _, id := range ids {
		reached := named[id]
		if !reached && len(named) > 0 && isID(id) {
			if reached, err = r.isReached(ctx, id); err != nil {
				return nil, err
			}
		}
		if !reached {
			unreached = append(unreached, id)
		}
	}
	return slices.Clip(unreached), nil
}

// isReached reports whether a reference reaches a commit. Git prints what no reference reaches: without
// --objects commits only, so that it would print nothing of a file, a folder or a tag that only lies
// there. With it those are always printed.
func (r *Repo) isReached(ctx context.Context, id string) (bool, error) {
	out, err := r.reading("rev-list", "--max-count=1", "--objects", "--filter=tree:0", id, "--not", "--all").ask(ctx, "")
	switch {
	case refused(err): // it is not there
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether %s is reached: %w", id, err)
	}
	return strings.TrimSpace(out) == "", nil
}
