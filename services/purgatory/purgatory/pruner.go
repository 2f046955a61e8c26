package purgatory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/nip34"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/shards"
)

const (
	// firstPrune is how soon after the start the first pools are pruned: what was marked before
	// must not wait for a whole interval.
	firstPrune = time.Minute
	// pruneTime bounds the work on one pool.
	pruneTime = 30 * time.Minute
)

// pruner is the identifiers whose pools must be pruned at once.
type pruner struct {
	mu    sync.Mutex
	asked []string
	wake  chan struct{}
}

func newPruner() *pruner { return &pruner{wake: make(chan struct{}, 1)} }

func (p *pruner) ask(identifier string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.asked, identifier) {
		p.asked = append(p.asked, identifier)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pruner) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

// drop is for an identifier whose pool is about to be pruned.
func (p *pruner) drop(identifier string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = slices.DeleteFunc(p.asked, func(other string) bool { return other == identifier })
}

// prunePools prunes the marked pools of the worker's shards, one after the other, from time to time
// until ctx ends. The marks are on the disk: who prunes needs to know nothing of who made them.
func (w *worker) prunePools(ctx context.Context) error {
	interval := w.node.Settings.GitPruneInterval
	tick := time.NewTimer(min(firstPrune, interval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.pruner.wake:
			for _, identifier := range w.pruner.take() {
				// What was there in part has to come again. It may be as broken where it comes
				// from, or the prune may have failed: neither is tried again at once.
				delay := w.node.Settings.HuntBackoffBase
				if w.prunePool(ctx, identifier) {
					w.hunter.Ensure(identifier, delay)
				}
				w.due.addAt(identifier, time.Now().Add(delay))
			}
		case <-tick.C:
			w.pruneMarked(ctx)
			tick.Reset(interval)
		}
	}
}

func (w *worker) pruneMarked(ctx context.Context) {
	var bytes int64
	for identifier, err := range w.store.Pools(ctx) {
		if err != nil {
			if ctx.Err() == nil {
				w.log.Error("the pools of git objects could not be looked through", "error", err)
			}
			return
		}
		if !w.shards.Holds(identifier) {
			continue
		}
		pool := w.store.Pool(identifier)
		if pool.Marked() {
			w.prunePool(ctx, identifier)
		}
		size, err := pool.Bytes()
		if err != nil {
			w.log.Warn("a pool of git objects could not be measured", "identifier", identifier, "error", err)
		}
		bytes += size
	}
	w.metrics.poolBytes.Set(float64(bytes))
}

// prunePool prunes one pool, and reports whether that is done. What goes wrong is for the next
// time: nothing is lost by waiting.
func (w *worker) prunePool(ctx context.Context, identifier string) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	if !w.store.Pool(identifier).Marked() {
		return true
	}
	if w.unmark(ctx, identifier) {
		return true
	}
	if !w.alignFirst(ctx, identifier) {
		return false
	}
	began := time.Now()
	pruned, err := w.store.Pool(identifier).Prune(ctx, repository.Pruning{
		Lock:   func(ctx context.Context) (func(), error) { return w.shards.Write(ctx, identifier) },
		Wanted: func(ctx context.Context) ([]string, error) { return w.wanted(ctx, identifier) },
		Forget: func() { w.releaser.Forget(identifier) },
	})
	switch {
	case errors.Is(err, shards.ErrElsewhere) || errors.Is(err, context.Canceled):
		return false
	case err != nil:
		w.metrics.prunes.WithLabelValues("error").Inc()
		w.log.Error("git objects that nothing needs could not be removed", "identifier", identifier, "error", err)
		return false
	case !pruned.Looked:
		return true
	}
	result := "nothing"
	if pruned.Repacked || pruned.Removed {
		result = "pruned"
		w.log.Info("git objects that nothing needed are removed", "identifier", identifier, "bytes", pruned.Freed, "whole_pool", pruned.Removed,
			"took", time.Since(began).Round(time.Millisecond))
	}
	w.metrics.prunes.WithLabelValues(result).Inc()
	w.metrics.prunedBytes.Add(float64(pruned.Freed))
	return true
}

// unmark removes the marks of a pool if references of hosted repositories name all of it, and
// reports whether they are gone. What cannot be found out is left to a prune.
func (w *worker) unmark(ctx context.Context, identifier string) bool {
	unlock, err := w.shards.Write(ctx, identifier)
	if err != nil {
		return false // another's now, or we are stopping
	}
	defer unlock()
	d, _, err := w.dossier(ctx, identifier)
	if err != nil {
		return false
	}
	var repos []*repository.Repo
	for _, owner := range d.Hosted() {
		repo, err := w.store.Repo(nip34.RepoRef{PubKey: owner, Identifier: identifier})
		if err != nil {
			return false
		}
		repos = append(repos, repo)
	}
	gone, err := w.store.Pool(identifier).Unmark(ctx, repos)
	if err != nil {
		w.log.Warn("the marks of a pool of git objects could not be looked at", "identifier", identifier, "error", err)
	}
	if gone {
		w.pruner.drop(identifier)
	}
	return gone
}

// alignFirst brings the references of an identifier in line with its accepted events, and reports
// whether these could be read. What no reference names is about to go, and references may be
// missing: a disk lost them, or they are not restored from a backup yet.
func (w *worker) alignFirst(ctx context.Context, identifier string) bool {
	unlock, err := w.shards.Write(ctx, identifier)
	if err != nil {
		return false // another's now, or we are stopping
	}
	defer unlock()
	w.releaser.Forget(identifier)
	d, err := w.settle(ctx, identifier)
	if err != nil {
		w.unsettled(ctx, identifier, err)
	}
	w.pruner.drop(identifier)
	// One repository that cannot be settled must not keep all others from being pruned.
	return d.Identifier != "" && ctx.Err() == nil
}

// wanted returns the objects that held events of an identifier name.
func (w *worker) wanted(ctx context.Context, identifier string) (objects []string, err error) {
	d, _, err := w.dossier(ctx, identifier)
	if err != nil {
		return nil, err
	}
	for _, want := range d.Wants() {
		objects = append(objects, want.Objects...)
	}
	return objects, nil
}
