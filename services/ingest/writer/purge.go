package writer

import (
	"errors"
	"fmt"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

const (
	// purgeEvery is how often banned events are looked for whose time is over.
	purgeEvery = 5 * time.Second
	// purgeAtOnce bounds how many of them are removed in one go.
	purgeAtOnce = commitSize
)

// purge has banned events removed that an operator wants removed, when their time is over, and
// banned ones that wait for git data dropped. Announcements and states go last: what hangs on them
// is found by them. Deletion requests stay, unserved: what they have deleted stays deleted.
func (t *term) purge(now time.Time) error {
	if now.Sub(t.purgedAt) < purgeEvery || t.rechecks.len() > 0 {
		return nil
	}
	t.purgedAt = now
	for _, e := range t.Held.All() {
		if t.Bans.Event(e.Event) != nil {
			t.rechecks.add(bulk, policy.Release(e.Event)) // which refuses it
		}
	}
	view := t.Index.View()
	defer view.Close()
	for b := range t.Bans.All() {
		if !b.Over(t.Settings.DeletionGrace, now) {
			continue
		}
		ids, err := view.HiddenBy(b.Name())
		found, count := map[bool][]*policy.Candidate{}, 0 // true: those that go last
		for _, id := range ids {
			var ev *nostr.Event
			if ev, err = view.All().Event(id); errors.Is(err, eventdb.ErrNotFound) || err == nil &&
				ev.Kind == nostr.KindDeletion {
				err = nil
				continue
			}
			if err != nil || count == purgeAtOnce {
				break
			}
			c := policy.Release(ev)
			c.Action, c.Purge = proto.ActionRemove, true
			last := ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState
			found[last], count = append(found[last], c), count+1
		}
		if err != nil {
			return fmt.Errorf("look for what is banned: %w", err)
		}
		if len(found[false]) == 0 { // or the next time
			found[false] = found[true]
		}
		if len(found[false]) > 0 {
			t.Log.Info("what was banned is removed", "ban", b.What, "events", len(found[false]))
			t.rechecks.add(bulk, found[false]...)
			t.purgedAt = time.Time{} // more may be left
			return nil
		}
	}
	return nil
}
