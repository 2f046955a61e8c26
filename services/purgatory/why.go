package purgatory

import (
	"context"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// waits tells what a repository waits for, and what was done about it; nil: no event waits for its
// git data, or it cannot be told now.
func (w *worker) waits(ctx context.Context, ref nostr.RepoRef) *proto.Waits {
	entries := w.holdings.OfIdentifier(ref.Identifier)
	repo, err := w.store.Repo(ref)
	if len(entries) == 0 || err != nil {
		return nil
	}
	v, err := w.known(ctx, ref.Identifier, entries, nil)
	if err != nil {
		return nil
	}
	var waiting []*nostr.Event
	var objects []string
	for _, a := range v.Announcements {
		if a.Held && a.Ref == ref {
			waiting = append(waiting, a.Event)
		}
	}
	for _, s := range v.StatesFor(ref.PubKey) {
		if s.Held {
			waiting, objects = append(waiting, s.Event), append(objects, s.Objects()...)
		}
	}
	for _, pr := range v.PullRequests {
		if pr.Held && slices.Contains(v.Tagged(pr), ref.PubKey) {
			waiting, objects = append(waiting, pr.Event), append(objects, pr.Commit)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	told := &proto.Waits{Asked: w.hunter.Asked(ref.Identifier)}
	told.Next, _ = w.hunter.State(ref.Identifier)
	for _, ev := range waiting {
		if e := w.holdings.ByID(ev.ID); e != nil && (told.Until.IsZero() || e.ExpiresAt.Before(told.Until)) {
			told.Until = e.ExpiresAt
		}
	}
	slices.Sort(objects)
	if objects = slices.Compact(objects); repo.Exists() && len(objects) > 0 {
		if missing, err := repo.Missing(ctx, objects); err == nil {
			told.Missing = some(missing)
		}
	}
	return told
}
