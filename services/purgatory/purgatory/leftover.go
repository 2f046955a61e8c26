package purgatory

import (
	"context"
	"fmt"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
)

const (
	// removeAtOnce and removeBytes bound the events whose removal is asked for in one go.
	removeAtOnce = 1000
	removeBytes  = 1 << 20
	// maxLeftBehind bounds the maintainers of a repository whose own repositories are looked for.
	maxLeftBehind = 20
)

// removal is the events of a repository that leave the log with it.
type removal struct {
	*worker
	repo    *repository.Repo
	ref     nostr.RepoRef
	atOnce  bool
	asks    []candidates.Candidate
	bytes   int // of asks
	removed int
}

// removeEvents asks ingest to remove the events that were accepted for a repository and that
// nothing else needs, and returns how many these were: those that name it, and the states of those
// who spoke for it alone. States stay as long as another repository of the identifier is kept for
// its owner: they may be that one's.
func (w *worker) removeEvents(ctx context.Context, repo *repository.Repo, atOnce bool) (removed int, err error) {
	r := &removal{worker: w, repo: repo, ref: repo.Ref(), atOnce: atOnce}
	filters, err := r.filters(ctx)
	for _, filter := range filters {
		if err == nil {
			err = r.matching(ctx, filter)
		}
	}
	if err != nil {
		return r.removed, fmt.Errorf("remove the events of %s: %w", r.ref, err)
	}
	return r.removed, nil
}

// filters finds the events that may be removed.
func (r *removal) filters(ctx context.Context) ([]nostr.Filter, error) {
	filters := namingOf(r.ref)
	// What names a maintainer has stayed for this repository.
	gone, err := r.goneMaintainers(ctx)
	if err != nil {
		return nil, err
	}
	for _, ref := range gone {
		filters = append(filters, namingOf(ref)...)
	}
	others, err := r.keptBeside(ctx, r.ref)
	if err != nil || others {
		return filters, err
	}
	return append(filters, statesOf(r.ref.Identifier)), nil
}

// goneMaintainers are the repositories of those whom the owner's last announcement names as
// maintainers, that are not on the disk.
func (r *removal) goneMaintainers(ctx context.Context) (gone []nostr.RepoRef, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	last, _, err := r.lastAnnouncement(ctx, r.ref)
	if last == nil || err != nil {
		return nil, err
	}
	a, err := nostr.ParseAnnouncement(last)
	if err != nil || a.Ref != r.ref {
		return nil, nil // it is of nobody here
	}
	for _, maintainer := range a.Maintainers[:min(len(a.Maintainers), maxLeftBehind)] {
		ref := nostr.RepoRef{PubKey: maintainer, Identifier: r.ref.Identifier}
		if ref != r.ref && !r.isOnDisk(ref) {
			gone = append(gone, ref)
		}
	}
	return gone, nil
}

func (w *worker) isOnDisk(ref nostr.RepoRef) bool {
	repo, err := w.store.Repo(ref)
	return err == nil && repo.Exists()
}

// namingOf finds the events that name a repository.
func namingOf(ref nostr.RepoRef) (filters []nostr.Filter) {
	for _, tag := range []string{"a", "A", "q"} {
		filters = append(filters, nostr.Filter{Tags: nostr.TagMap{tag: {ref.String()}}})
	}
	return filters
}

// statesOf finds the states of an identifier, by anybody.
func statesOf(identifier string) nostr.Filter {
	return nostr.Filter{Kinds: []int{nostr.KindState}, Tags: nostr.TagMap{"d": {identifier}}}
}

// keptBeside reports whether another repository of the identifier lies on the disk that ingest may
// not know of: it is not hosted, or it is an archive, which may be one by settings of earlier.
// Those of contributors have no states.
func (w *worker) keptBeside(ctx context.Context, ref nostr.RepoRef) (bool, error) {
	for other, err := range w.store.Places(ctx, nostr.RepoRef{Identifier: ref.Identifier}) {
		if err != nil {
			return false, err
		}
		if other.PRs || other.RepoRef == ref {
			continue
		}
		repo, err := w.store.At(other)
		if err != nil {
			return true, err
		}
		hosted, err := w.announced(ctx, other.RepoRef, w.holdings.OfIdentifier(other.Identifier))
		if err != nil || !hosted || repo.IsArchive() {
			return true, err
		}
	}
	return false, nil
}

func (r *removal) matching(ctx context.Context, filter nostr.Filter) error {
	for ev, err := range r.events.Query(ctx, filter) {
		if err != nil {
			return err
		}
		if !r.mayGo(ev) {
			continue
		}
		raw := nostr.Encode(ev)
		r.asks = append(r.asks, candidates.Candidate{Event: ev, Raw: raw, Lane: proto.LaneRelease, Source: proto.SourceRelease, Action: proto.ActionRemove})
		r.bytes += len(raw)
		if len(r.asks) == removeAtOnce || r.bytes >= removeBytes {
			if err := r.ask(ctx); err != nil {
				return err
			}
		}
	}
	return r.ask(ctx)
}

// mayGo reports whether ingest must be asked for the removal of an event. What names another
// repository that is on the disk stays as long as that: its owner may have given it up too, and
// come back to it, which ingest does not know of.
func (r *removal) mayGo(ev *nostr.Event) bool {
	switch ev.Kind {
	case nostr.KindAnnouncement, nostr.KindDeletion, nostr.KindUserGraspList:
		return false // ingest keeps these
	case nostr.KindState:
		return true // it is its author's, whatever it names
	}
	for _, address := range nostr.ReferencesOf(ev).Addresses {
		if ref, is := address.Repo(); is && ref != r.ref && r.isOnDisk(ref) {
			return false
		}
	}
	return true
}

// ask asks for the removal of what was gathered, if the repository must be removed still: its
// owner may have come back since the events before.
func (r *removal) ask(ctx context.Context) error {
	if len(r.asks) == 0 {
		return nil
	}
	if err := r.isOver(ctx, r.repo, r.atOnce); err != nil {
		return err
	}
	verdicts, err := release.Ask(ctx, r.releaser.Offerer, r.asks)
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		if v.Outcome == proto.Rejected { // an ingest of an earlier version does not know how
			return fmt.Errorf("ingest does not remove event %s: %s", r.asks[i].Event.ID, v.Message)
		}
		if v.Seq > 0 {
			r.removed++
			r.log.Debug("an event of a removed repository is removed", "event", r.asks[i].Event.ID, "kind", r.asks[i].Event.Kind)
		}
	}
	r.asks, r.bytes = r.asks[:0], 0
	return nil
}
