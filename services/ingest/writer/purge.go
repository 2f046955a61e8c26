package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

const (
	// purgeEvery is how often banned events are looked for whose time is over.
	purgeEvery = 5 * time.Second
	// purgeAtOnce and purgeBytes bound how many of them are removed in one go.
	purgeAtOnce = 5000
	purgeBytes  = 16 << 20
)

// purge has banned events removed that an operator wants removed, when their time is over, and
// banned ones that wait for git data dropped. Announcements and states go last: what hangs on them
// is found by them. Deletion requests stay, unserved: what they have deleted stays deleted.
func (t *term) purge(ctx context.Context, now time.Time) error {
	if now.Sub(t.purgedAt) < purgeEvery || len(t.healed) > 0 {
		return nil
	}
	t.purgedAt = now
	for _, e := range t.Held.All() {
		if t.Bans.Event(e.Event) != nil {
			t.healed = append(t.healed, policy.Release(e.Event)) // which refuses it
		}
	}
	view := t.Index.View()
	defer view.Close()
	all, bytes := view.All(), 0
	var first, last []*policy.Candidate
	for b := range t.Bans.All() {
		if !b.Over(t.Grace, now) {
			continue
		}
		ids, err := view.HiddenBy(b.Name())
		if err != nil {
			return fmt.Errorf("look for what is banned: %w", err)
		}
		for _, id := range ids {
			ev, err := all.Event(id)
			switch {
			case errors.Is(err, eventdb.ErrNotFound) || err == nil && ev.Kind == nostr.KindDeletion:
				continue
			case err != nil:
				return fmt.Errorf("look for what is banned: %w", err)
			}
			c := policy.Release(ev)
			c.Action, c.Purge = proto.ActionRemove, true
			if bytes += len(c.Raw); ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
				last = append(last, c)
			} else {
				first = append(first, c)
			}
			if len(first)+len(last) == purgeAtOnce || bytes > purgeBytes {
				break
			}
		}
		if len(first) > 0 {
			last = nil // the next time
		}
		if found := slices.Concat(first, last); len(found) > 0 {
			t.Log.Info("what was banned is removed", "ban", b.What, "events", len(found))
			t.healed, first, last = append(t.healed, found...), nil, nil
			break
		}
	}
	return nil
}
