package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tendril.dev/lib/bus"
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

const (
	// takenEvery is how often it is looked for what lies in the log though its author has taken it
	// away, and takenMargin how long after the grace period that goes: purgatory reads there how the
	// hosting of a repository has ended.
	takenEvery  = time.Minute
	takenMargin = 24 * time.Hour
)

// clean has removed from the log what has no place there any more.
func (t *term) clean(now time.Time) error {
	if now.Sub(t.purgedAt) < purgeEvery || t.rechecks.len() > 0 {
		return nil
	}
	t.purgedAt = now
	if err := t.purge(now); err != nil || t.rechecks.len() > 0 {
		return err
	}
	return t.takeOut(now)
}

// takeOut has removed what has expired, what hangs on announcements whose authors have taken them
// away, when their grace period is over, and at last what was taken away itself. The order matters:
// an index that is made again knows by an announcement that is still in the log what hangs on it.
func (t *term) takeOut(now time.Time) error {
	view := t.Index.View()
	defer view.Close()
	expired, err := view.Expired(purgeAtOnce)
	if err != nil {
		return fmt.Errorf("look for what has expired: %w", err)
	}
	for _, ev := range expired {
		t.leave(ev)
	}
	over := nostr.Timestamp(now.Add(-t.Settings.DeletionGrace).Unix())
	hanging, err := view.GoneBefore(over, purgeAtOnce)
	if err != nil {
		return fmt.Errorf("look for what hangs on announcements that are gone: %w", err)
	}
	for _, id := range hanging {
		ev, err := view.All().Event(id)
		if errors.Is(err, eventdb.ErrNotFound) {
			continue // it has expired
		}
		if err != nil {
			return fmt.Errorf("read what hangs on an announcement that is gone: %w", err)
		}
		c := policy.Release(ev)
		c.Action, c.Purge = proto.ActionRemove, true
		t.rechecks.add(bulk, c)
	}
	if t.rechecks.len() > 0 {
		t.purgedAt = time.Time{} // more may be left
		return nil
	}
	if now.Sub(t.takenAt) < t.takenEvery {
		return nil
	}
	t.takenAt = now
	taken, err := view.TakenBefore(over-nostr.Timestamp(takenMargin/time.Second), purgeAtOnce)
	if err != nil {
		return fmt.Errorf("look for what was taken away: %w", err)
	}
	return t.erase(taken)
}

// leave has an event removed whose time in the log is over.
func (t *term) leave(ev *nostr.Event) {
	c := policy.Release(ev)
	c.Action, c.Leaves = proto.ActionRemove, true
	t.rechecks.add(bulk, c)
}

// erase has removed from the log what no index has any more.
func (t *term) erase(taken []eventdb.Taken) error {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	for _, is := range taken {
		m, found, err := bus.Last(ctx, t.Bus.JS, proto.StreamEvents, is.Subject)
		if err != nil {
			return fmt.Errorf("read what was taken away: %w", err)
		}
		ev := new(nostr.Event)
		if !found || ev.UnmarshalJSON(m.Data) != nil || ev.ID != is.ID {
			t.Log.Warn("what was taken away is not in the log any more", "subject", is.Subject, "event", is.ID)
			continue
		}
		t.leave(ev)
	}
	return nil
}

// purge has banned events removed that an operator wants removed, when their time is over, and
// banned ones that wait for git data dropped. Announcements and states go last: what hangs on them
// is found by them. Requests stay, unserved: what they have taken away stays away.
func (t *term) purge(now time.Time) error {
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
				(ev.Kind == nostr.KindDeletion || ev.Kind == nostr.KindVanish) {
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
