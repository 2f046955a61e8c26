package release

import (
	"context"
	"fmt"
)

// pool brings to the pool what references of the repositories name, and leaves to each as its own
// what no accepted event names: for that the pool is marked, so that it goes when nobody waits for
// it any more.
func (s *settlement) pool(ctx context.Context) {
	for _, owner := range s.everywhere() {
		if s.stock.repos[owner] == nil || s.failed[owner] != nil {
			continue
		}
		if err := s.poolOne(ctx, owner); err != nil {
			s.fail(owner, err)
		}
	}
}

func (s *settlement) poolOne(ctx context.Context, owner string) error {
	repo := s.stock.repos[owner]
	own, err := repo.HasOwnObjects()
	if !own || err != nil {
		return err
	}
	packs, err := s.stock.packs(owner)
	if err != nil || s.known.pooled[owner] == packs {
		return err
	}
	tips, err := repo.Named(ctx, func(name string) bool { return s.waiting[owner][name] })
	if err != nil {
		return fmt.Errorf("%s: %w", repo.Ref(), err)
	}
	if err := repo.Promote(ctx, tips); err != nil {
		return fmt.Errorf("%s: %w", repo.Ref(), err)
	}
	if err := repo.DropPromoted(); err != nil {
		return fmt.Errorf("%s: %w", repo.Ref(), err)
	}
	if own, err = repo.HasOwnObjects(); err != nil {
		return err
	}
	if own {
		if err := repo.Pool().OrphanOwn(); err != nil {
			return err
		}
	}
	s.known.pooled[owner], err = s.stock.packs(owner)
	return err
}
