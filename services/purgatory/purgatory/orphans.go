package purgatory

import (
	"context"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/release"
)

// orphans are repositories that may have lost the announcement that they were made for, or have got
// another one. They are looked at when their identifier is settled.
type orphans struct {
	mu sync.Mutex
	by map[string]map[nostr.RepoRef]bool // identifier
}

func newOrphans() *orphans { return &orphans{by: map[string]map[nostr.RepoRef]bool{}} }

func (o *orphans) add(refs ...nostr.RepoRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ref := range refs {
		if o.by[ref.Identifier] == nil {
			o.by[ref.Identifier] = map[nostr.RepoRef]bool{}
		}
		o.by[ref.Identifier][ref] = true
	}
}

// take returns those of an identifier, and forgets them. It is called before what is known of the
// identifier is read: one that is added later is for the next time.
func (o *orphans) take(identifier string) (refs []nostr.RepoRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ref := range o.by[identifier] {
		refs = append(refs, ref)
	}
	delete(o.by, identifier)
	return refs
}

// drop forgets those of a shard.
func (o *orphans) drop(shard int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for identifier := range o.by {
		if proto.ShardOf(identifier) == shard {
			delete(o.by, identifier)
		}
	}
}

// surveyEvery is how often all repositories are looked at though nothing happened: what a killed
// process left is swept up only when it is so old that no living one can own it.
const surveyEvery = 24 * time.Hour

// survey is the shards whose repositories must be looked at, because nobody may have been there
// when something happened to what they wait for.
type survey struct {
	mu     sync.Mutex
	shards map[int]bool
	wake   chan struct{}
}

func newSurvey() *survey { return &survey{shards: map[int]bool{}, wake: make(chan struct{}, 1)} }

func (s *survey) ask(shards ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range shards {
		s.shards[n] = true
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// askAll asks for all shards; those that the worker does not hold are passed over.
func (s *survey) askAll() {
	all := make([]int, proto.Shards)
	for n := range all {
		all[n] = n
	}
	s.ask(all...)
}

func (s *survey) take() map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.shards
	s.shards = map[int]bool{}
	return taken
}

// surveyDisk looks through the disk for repositories of newly held shards in which something waits
// that no held event tells of: those without data, whose announcement may be gone, those that are
// not hosted any more and are kept for a while, and those with pushed commits whose event has not
// come. What killed processes left is swept up on the way. All shards that came together are looked
// at in one go.
func (w *worker) surveyDisk(ctx context.Context) error {
	again := time.NewTicker(surveyEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.survey.wake:
		case <-again.C:
			w.survey.askAll()
		}
		shards := w.survey.take()
		err := w.loadPending(ctx, shards)
		if err == nil {
			err = w.lookThrough(ctx, shards)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Error("the repositories could not be looked through", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(w.node.Settings.HuntBackoffBase):
			}
			for n := range shards {
				w.survey.ask(n)
			}
		}
	}
}

func (w *worker) lookThrough(ctx context.Context, shards map[int]bool) error {
	for at, err := range w.store.Places(ctx) {
		if err != nil {
			return err
		}
		if !shards[proto.ShardOf(at.Identifier)] || !w.shards.Holds(at.Identifier) {
			continue
		}
		look := w.lookAt
		if at.PRs {
			look = w.lookAtContribution
		}
		if err := look(ctx, at.RepoRef); err != nil && ctx.Err() == nil {
			w.log.Warn("a repository cannot be read", "repository", at, "error", err)
		}
	}
	return nil
}

func (w *worker) lookAt(ctx context.Context, ref nostr.RepoRef) error {
	repo, err := w.store.Repo(ref)
	if err != nil {
		return err
	}
	if err := repo.Sweep(); err != nil {
		return err
	}
	has, err := repo.HasData(ctx)
	if err != nil {
		return err
	}
	if !has {
		w.orphans.add(ref)
		w.due.add(ref.Identifier)
		return nil
	}
	d, err := w.known(ctx, ref.Identifier, w.holdings.OfIdentifier(ref.Identifier))
	if err != nil {
		return err
	}
	ended, err := repo.Ended()
	if err != nil {
		return err
	}
	if !d.Hosts(ref.PubKey) || ended != nil {
		w.orphans.add(ref)
		w.due.add(ref.Identifier)
	}
	killed, err := repo.HasLeftPushes()
	if err != nil {
		return err
	}
	if killed {
		w.due.add(ref.Identifier)
	}
	waiting, err := release.Waiting(ctx, repo, w.accepted)
	if len(waiting) > 0 {
		w.releaser.Forget(ref.Identifier) // their events may have been accepted when it looked the last time
		w.due.add(ref.Identifier)
	}
	if err != nil {
		return err
	}
	return w.surveyPulls(ctx, d)
}

// surveyPulls looks for accepted pull requests whose commit must be named in a repository of an
// identifier.
func (w *worker) surveyPulls(ctx context.Context, d dossier.Dossier) error {
	identifier := d.Identifier
	w.pulls.recheck(identifier)
	if _, err := w.lookForOwed(ctx, d); err != nil {
		return err
	}
	if owed, _ := w.pulls.owed(identifier, time.Now(), w.node.Settings.HoldDuration); len(owed) > 0 {
		w.due.add(identifier)
	}
	return nil
}
