package purgatory

import (
	"context"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// waits tells what a repository waits for, and what was done about it; nil: no event waits for its
// git data, or it cannot be told now.
func (w *answers) waits(ctx context.Context, ref nostr.RepoRef) *proto.Waits {
	repo, err := w.store.Repo(ref)
	if err != nil {
		return nil
	}
	v, err := w.knowledge.around(ctx, ref.Identifier, []string{ref.PubKey}, nil)
	if err != nil {
		return nil
	}
	told := &proto.Waits{Asked: w.schedule.hunter.Asked(ref.Identifier)}
	told.Next = w.schedule.hunter.Status(ref.Identifier).Next
	var objects []string
	waits := func(ev *nostr.Event, needs ...string) {
		if e := w.knowledge.holdings.ByID(ev.ID); e != nil && (told.Until.IsZero() || e.ExpiresAt.Before(told.Until)) {
			told.Until = e.ExpiresAt
		}
		objects = append(objects, needs...)
	}
	for _, a := range v.Announcements {
		if a.Held && a.Ref == ref {
			waits(a.Event)
		}
	}
	for _, s := range v.StatesFor(ref.PubKey) {
		if s.Held {
			waits(s.Event, s.Objects()...)
		}
	}
	for _, pr := range v.PullRequests {
		if pr.Held && slices.Contains(v.Tagged(pr), ref.PubKey) {
			waits(pr.Event, pr.Commit)
		}
	}
	if told.Until.IsZero() {
		return nil
	}
	slices.Sort(objects)
	objects = slices.Compact(objects)
	told.Named = len(objects)
	if objects, err = repo.Missing(ctx, objects); err != nil {
		return nil
	}
	told.Missing = some(objects)
	return told
}
