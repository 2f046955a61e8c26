package purgatory

import (
	"context"
	"fmt"
	"sync"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
)

// orphans are repositories that may have lost the announcement that they were made for. They are looked at when their identifier is settled.
type orphans struct {
	mu sync.Mutex
	by map[string][]nip34.RepoRef // identifier
}

func newOrphans() *orphans { return &orphans{by: map[string][]nip34.RepoRef{}} }

func (o *orphans) add(ref nip34.RepoRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by[ref.Identifier] = append(o.by[ref.Identifier], ref)
}

func (o *orphans) take(identifier string) []nip34.RepoRef {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.by[identifier]
	delete(o.by, identifier)
	return list
}

// of gives the identifiers of a shard.
func (o *orphans) of(shard int) (identifiers []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for identifier := range o.by {
		if proto.ShardOf(identifier) == shard {
			identifiers = append(identifiers, identifier)
		}
	}
	return identifiers
}

// findOrphans looks through the disk for repositories without data: what made them may have gone while nobody was here to see.
func (w *worker) findOrphans(ctx context.Context) error {
	for ref, err := range w.store.All(ctx) {
		if err != nil {
			return fmt.Errorf("look through the repositories: %w", err)
		}
		repo, err := w.store.Repo(ref)
		if err != nil {
			return err
		}
		has, err := repo.HasData(ctx)
		if err != nil {
			w.log.Warn("a repository cannot be read", "repository", ref, "error", err)
			continue
		}
		if !has {
			w.orphans.add(ref)
		}
	}
	return nil
}
