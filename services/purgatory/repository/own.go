package repository

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"slices"
)

// slim removes from the repository's own folder what neither its references nor the wanted objects
// need, and what the pool has.
func (r *Repo) slim(ctx context.Context, wanted []string) error {
	if err := r.DropPromoted(); err != nil {
		return err
	}
	packs, err := r.ownPacks()
	if err != nil {
		return err
	}
	loose, err := r.looseObjects()
	if err != nil || len(packs)+len(loose) == 0 {
		return err
	}
	needs, err := r.needs(ctx, wanted)
	if err != nil {
		return err
	}
	defer needs.close()
	own, err := r.openIndexes()
	if err != nil {
		return err
	}
	defer own.close()
	isLoose := map[string]bool{}
	for _, id := range loose {
		isLoose[id] = true
	}
	keep, err := needs.filter(r, func(id []byte) bool { return own.has(id) || isLoose[hex.EncodeToString(id)] })
	if err != nil {
		return err
	}
	defer keep.close()
	if own.count()+len(loose) == keep.count {
		return nil
	}
	return r.replaceOwn(ctx, packs, loose, keep)
}

// needs lists what the references and the wanted objects need. Wanted objects of which a part is
// missing count as not there.
func (r *Repo) needs(ctx context.Context, wanted []string) (*objectList, error) {
	named, err := r.Named(ctx, nil)
	if err != nil {
		return nil, err
	}
	tips, err := r.Pool().readTips()
	if err != nil {
		return nil, err
	}
	known := nearest(tips, r.ref.PubKey)
	types, err := r.Types(ctx, wanted)
	if err != nil {
		return nil, err
	}
	there := slices.DeleteFunc(slices.Clone(wanted), func(id string) bool { return types[id] == "" })
	list, err := r.list(ctx, slices.Concat(named, there), known)
	if len(there) > 0 && errors.Is(err, ErrBroken) {
		list, err = r.list(ctx, named, known)
	}
	return list, err
}

// replaceOwn puts one pack in the place of the packs and loose objects that were listed. A fetch
// may show another pack meanwhile, which stays.
func (r *Repo) replaceOwn(ctx context.Context, packs, loose []string, keep *objectList) error {
	var kept []string
	if keep.count > 0 {
		var err error
		ids := io.NewSectionReader(keep.ids, 0, int64(keep.count)*lineBytes)
		if kept, err = r.packInto(ctx, r, ids); err != nil {
			return err
		}
	}
	for _, name := range packs {
		if slices.Contains(kept, name) {
			continue // it had exactly what is kept
		}
		if err := r.store.before("remove an own pack"); err != nil {
			return err
		}
		if err := r.removePack(name); err != nil {
			return err
		}
	}
	for _, id := range loose {
		if err := r.removeLoose(id); err != nil {
			return err
		}
	}
	return nil
}
