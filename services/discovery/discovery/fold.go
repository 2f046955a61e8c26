package discovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nip34"
	"tendril.dev/services/discovery/repos"
)

// hear notes newly accepted events. It runs in the index's goroutine.
func (d *discovery) hear(recs []eventdb.Record) {
	d.heardMu.Lock()
	defer d.heardMu.Unlock()
	if d.missed {
		return // the next window makes the book anew
	}
	concerned := false
	for _, r := range recs {
		kind := r.Event.Kind
		if kind == nip34.KindAnnouncement || nip34.IsRootKind(kind) || kind == nip34.KindDeletion && !d.keepAll {
			d.heard, d.heardBytes, concerned = append(d.heard, r), d.heardBytes+len(r.Raw), true
		}
	}
	if len(d.heard) > maxHeard || d.heardBytes > maxHeardBytes {
		d.heard, d.heardBytes, d.missed = nil, 0, true
	}
	if concerned {
		select {
		case d.news <- struct{}{}:
		default:
		}
	}
}

// foldAsItComes keeps the book in step with what is heard, and opens a window if that may change a
// target.
func (d *discovery) foldAsItComes(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.news:
		}
		d.mu.Lock()
		changed, err := d.fold(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("what was accepted could not be looked up, reading everything anew", "error", err)
			d.stale, changed = true, true
		}
		d.mu.Unlock()
		if changed {
			d.signal()
		}
	}
}

// fold folds what was heard into the book, and reports whether that may change a target; d.mu is
// held. It reads from the index only what the events concern: what a deletion request names and the
// book has, and the earlier root events of repositories that are new.
func (d *discovery) fold(ctx context.Context) (changed bool, err error) {
	d.heardMu.Lock()
	heard, missed := d.heard, d.missed
	d.heard, d.heardBytes, d.missed = nil, 0, false
	d.heardMu.Unlock()
	d.stale = d.stale || missed
	if d.stale {
		return true, nil // the next look at the index sees everything
	}
	if len(heard) == 0 {
		return false, nil
	}
	// It was told of after it was written, so this view has it all, with what deletion requests
	// took away.
	view := d.index.View()
	defer func() { err = errors.Join(err, view.Close()) }()
	for _, r := range heard {
		did := false
		switch {
		case r.Seq <= d.at: // the last look at the index saw it
		case r.Event.Kind == nip34.KindDeletion:
			did, err = d.carryOut(view, d.book.NamedBy(r.Event))
		default:
			did = d.book.Accept(r.Event)
		}
		if changed = changed || did; err != nil {
			return changed, err
		}
	}
	return changed, d.readRoots(ctx, view)
}

// carryOut drops what a deletion request names and the index no longer has.
func (d *discovery) carryOut(view *eventdb.View, named repos.Named) (changed bool, err error) {
	for _, id := range named.Roots {
		d.metrics.reads.Inc()
		has, err := view.Has(id.String())
		if err != nil {
			return changed, fmt.Errorf("look up root event %s: %w", id, err)
		}
		changed = !has && d.book.ForgetRoot(id) || changed
	}
	for _, ref := range named.Repos {
		d.metrics.reads.Inc()
		_, err := view.Replaceable(nip34.KindAnnouncement, ref.PubKey, ref.Identifier)
		switch {
		case errors.Is(err, eventdb.ErrNotFound):
			changed = d.book.Forget(ref) || changed
		case err != nil:
			return changed, fmt.Errorf("look up repository %s: %w", ref, err)
		}
	}
	return changed, nil
}

// readRoots reads the root events of repositories that are new to the book: they may have been
// accepted before the announcement was.
func (d *discovery) readRoots(ctx context.Context, view *eventdb.View) error {
	for _, ref := range d.book.TakeUnread() {
		roots := nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{"a": {ref.String()}}}
		if err := d.readAll(ctx, view, roots); err != nil {
			return err
		}
	}
	return nil
}

var rootKinds = []int{nip34.KindPatch, nip34.KindPR, nip34.KindIssue}

// readAll folds all events that match a filter into the book.
func (d *discovery) readAll(ctx context.Context, view *eventdb.View, f nostr.Filter) error {
	d.metrics.reads.Inc()
	for ev, err := range view.Query(ctx, f) {
		if err != nil {
			return fmt.Errorf("read repositories from the index: %w", err)
		}
		d.metrics.reads.Inc()
		d.book.Accept(ev)
	}
	return nil
}

// reread makes the book anew from the index if it is stale; d.mu is held.
func (d *discovery) reread(ctx context.Context) (err error) {
	if !d.stale {
		return nil
	}
	view := d.index.View()
	defer func() { err = errors.Join(err, view.Close()) }()
	d.book.ForgetAccepted()
	for _, kinds := range [][]int{{nip34.KindAnnouncement}, rootKinds} {
		if err := d.readAll(ctx, view, nostr.Filter{Kinds: kinds}); err != nil {
			return err
		}
	}
	d.book.TakeUnread() // their root events were just read
	d.at, d.stale = view.Seq(), false
	return nil
}
