package purgatory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/pending"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
)

// loadingTime is how long a push waits for the account to be read from the disk.
const loadingTime = 20 * time.Second

// pushes is the account of references that were pushed before their events, in the shards for which
// it has been read from the disk.
type pushes struct {
	*pending.Ledger

	mu     sync.Mutex
	read   map[int]bool  // shards
	opened chan struct{} // closed when another shard has been read
}

func newPushes(s config.Git) *pushes {
	return &pushes{read: map[int]bool{}, opened: make(chan struct{}), Ledger: pending.New(pending.Limits{
		ClientBytes: s.PendingPushBytesPerClient, Bytes: s.PendingPushBytes,
		ClientRefs: s.PendingPushesPerClient, RepositoryRefs: s.PendingPushesPerRepository, References: s.PendingPushes,
	})}
}

func (p *pushes) open(shards ...int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, shard := range shards {
		p.read[shard] = true
	}
	close(p.opened)
	p.opened = make(chan struct{})
}

// isOpen reports whether an identifier's shard has been read, and returns what is closed when
// another one has.
func (p *pushes) isOpen(identifier string) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.read[proto.ShardOf(identifier)], p.opened
}

// wait returns when an identifier's shard has been read. A *pending.Refused says that it takes too
// long.
func (p *pushes) wait(ctx context.Context, identifier string) error {
	patience := time.NewTimer(loadingTime)
	defer patience.Stop()
	for {
		open, another := p.isOpen(identifier)
		if open {
			return nil
		}
		select {
		case <-another:
		case <-patience.C:
			return &pending.Refused{Reason: "the server has just started and still counts what waits for its event; push again in a moment"}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// close forgets a shard: another worker changes what lies there.
func (p *pushes) close(shard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.read, shard)
	p.Drop(func(at repository.Place) bool { return proto.ShardOf(at.Identifier) == shard })
}

// loadPending reads what waits for its events in the repositories of shards. It starts no git.
func (w *worker) loadPending(ctx context.Context, shards map[int]bool) error {
	for at, err := range w.store.Places(ctx) {
		if err != nil {
			return err
		}
		shard := proto.ShardOf(at.Identifier)
		if open, _ := w.pending.isOpen(at.Identifier); open || !shards[shard] || !w.shards.HoldsShard(shard) {
			continue
		}
		repo, err := w.store.At(at)
		if err != nil {
			return err
		}
		notes, err := repo.Waiting()
		if err != nil {
			return err
		}
		for _, note := range notes {
			w.pending.Set(at, note)
		}
	}
	w.pending.open(slices.DeleteFunc(slices.Collect(maps.Keys(shards)), func(n int) bool { return !w.shards.HoldsShard(n) })...)
	return nil
}

// unknownEvents returns the ids for which a push names references and whose events are not known.
func (w *worker) unknownEvents(d dossier.Dossier, push githttp.PushRequest) (events []string, err error) {
	for _, c := range push.Commands {
		id, is := strings.CutPrefix(c.Name, "refs/nostr/")
		if !is || c.Delete() {
			continue
		}
		_, known, err := release.CommitOf(d, w.accepted, id)
		if err != nil {
			return nil, err
		}
		if !known {
			events = append(events, id)
		}
	}
	return events, nil
}

// checkPending reports whether there is room at a place for what a push brings without its events,
// which are given. A *pending.Refused says why not.
func (w *worker) checkPending(ctx context.Context, at repository.Place, push githttp.PushRequest, events []string) error {
	if len(events) == 0 {
		return nil
	}
	if err := w.pending.wait(ctx, at.Identifier); err != nil {
		return err
	}
	return w.pending.Check(at, push.Client, events, push.PackBytes)
}

// arriving is what a push brings without its event.
type arriving struct {
	repo   *repository.Repo
	notes  []repository.WaitingPush
	before int64 // bytes of the repository's own before it
}

// admitPending puts into the account what a push brings without its events, which are given,
// durably, before its references are there. The bytes of a push that a state allows are its
// owner's, and are not counted. The caller has the identifier's lock.
func (w *worker) admitPending(ctx context.Context, repo *repository.Repo, push githttp.PushRequest, events []string, byState bool) (arriving, error) {
	if byState {
		push.PackBytes = 0
	}
	at := repo.Place()
	if err := w.checkPending(ctx, at, push, events); err != nil || len(events) == 0 {
		return arriving{}, err
	}
	a := arriving{repo: repo}
	var err error
	if a.before, err = repo.Bytes(); err != nil {
		return arriving{}, err
	}
	if byState {
		a.before = -1 // not to be counted
	}
	if a.notes, err = w.pending.Admit(at, push.Client, events, push.PackBytes); err != nil {
		return arriving{}, err
	}
	for _, note := range a.notes {
		if err := repo.SetWaiting(note); err != nil {
			for _, note := range a.notes {
				w.pending.Remove(at, note.Event)
			}
			return arriving{}, err
		}
	}
	return a, nil
}

// countPending corrects the account by what a push has made of its bytes: a pack that refers to
// objects which are here takes up more than was sent. Settling removes what did not become a
// reference.
func (w *worker) countPending(a arriving) {
	if len(a.notes) == 0 || a.before < 0 {
		return
	}
	at := a.repo.Place()
	after, err := a.repo.Bytes()
	note := a.notes[0]
	if err != nil || after-a.before <= note.Bytes {
		return
	}
	note.Bytes = after - a.before
	if err := a.repo.SetWaiting(note); err != nil {
		w.log.Warn("the size of a waiting push could not be recorded", "repository", at, "error", err)
	}
	w.pending.Set(at, note)
}
