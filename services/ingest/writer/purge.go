package writer

import (
	"context"
	"encoding/hex"
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
	// purgeEvery is how often it is looked for what must leave the log.
	purgeEvery = 5 * time.Second
	// purgeAtOnce bounds how much of that is removed in one go.
	purgeAtOnce = commitSize
)

const (
	// takenEvery is how often it is looked for what lies in the log though its author has taken it
	// away, and takenMargin how long after the grace period that goes: purgatory reads there how the
	// hosting of a repository has ended.
	takenEvery  = time.Minute
	takenMargin = 24 * time.Hour
)

// found is what must leave the log, or purgatory. It is decided again like any candidate.
type found struct {
	candidates []*policy.Candidate
	more       bool // there may be more of it
	taken      bool // it was looked for what was taken away, too
}

// clean has removed from the log what has no place there any more. It is looked for beside the
// writer, once at a time: to go through what is banned or was taken away takes long, and to read it
// from the log longer, and users would wait meanwhile.
func (t *term) clean(ctx context.Context, now time.Time) {
	select {
	case f := <-t.found:
		t.looking = false
		t.rechecks.add(bulk, f.candidates...)
		if f.more {
			t.purgedAt = time.Time{}
		}
		if f.taken {
			t.takenAt = now
		}
	default:
	}
	if t.looking || now.Sub(t.purgedAt) < purgeEvery || t.rechecks.len() > 0 {
		return
	}
	t.looking, t.purgedAt = true, now
	taken := now.Sub(t.takenAt) >= t.takenEvery
	t.searching.Go(func() {
		t.beforeSearch()
		f, err := t.search(ctx, now, taken)
		if err != nil && ctx.Err() == nil {
			t.Log.Warn("what must leave the log is looked for again", "error", err)
		}
		t.found <- f
		t.scheduler.wake()
	})
}

// search looks for what must go: what is banned; then what has expired, and what hangs on
// announcements whose authors have taken them away, when their grace period is over; and at last,
// if that is due, what was taken away itself. The order matters: an index that is made again knows by
// an announcement that is still in the log what hangs on it.
func (w *Writer) search(ctx context.Context, now time.Time, taken bool) (f found, err error) {
	view := w.Index.View()
	defer view.Close()
	over := nostr.Timestamp(now.Add(-w.Settings.DeletionGrace).Unix())
	for _, look := range []func() ([]*policy.Candidate, error){
		func() ([]*policy.Candidate, error) { return w.banned(view, now) },
		func() ([]*policy.Candidate, error) { return w.expired(view) },
		func() ([]*policy.Candidate, error) { return w.hanging(view, over) },
	} {
		if f.candidates, err = look(); len(f.candidates) > 0 || err != nil {
			f.more = err == nil
			return f, err
		}
	}
	for _, e := range w.Held.All() {
		if w.Bans.Event(e.Event) != nil {
			f.candidates = append(f.candidates, policy.Release(e.Event)) // which refuses it
		}
	}
	if taken && len(f.candidates) == 0 {
		f.candidates, err = w.takenAway(ctx, view, over-nostr.Timestamp(takenMargin/time.Second))
		f.taken = err == nil // else its turn comes with the next search
	}
	return f, err
}

// expired are events whose time is over.
func (w *Writer) expired(view *eventdb.View) (candidates []*policy.Candidate, err error) {
	expired, err := view.Expired(purgeAtOnce)
	for _, ev := range expired {
		candidates = append(candidates, leaves(ev))
	}
	if err != nil {
		return nil, fmt.Errorf("look for what has expired: %w", err)
	}
	return candidates, nil
}

// hanging are events that hang on announcements that went before a time.
func (w *Writer) hanging(view *eventdb.View, over nostr.Timestamp) (candidates []*policy.Candidate, err error) {
	ids, err := view.GoneBefore(over, purgeAtOnce)
	for _, id := range ids {
		ev, failed := view.All().Event(id)
		if errors.Is(failed, eventdb.ErrNotFound) {
			continue // it has expired
		}
		if err = errors.Join(err, failed); err == nil {
			candidates = append(candidates, purged(ev))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look for what hangs on announcements that are gone: %w", err)
	}
	return candidates, nil
}

// takenAway is what no index has any more because its author took it away before a time. It is read
// from the log.
func (w *Writer) takenAway(ctx context.Context, view *eventdb.View, over nostr.Timestamp) (
	candidates []*policy.Candidate, err error) {
	taken, err := view.TakenBefore(over, purgeAtOnce)
	if err != nil {
		return nil, fmt.Errorf("look for what was taken away: %w", err)
	}
	for _, is := range taken {
		m, found, err := bus.Last(ctx, w.Bus.JS, proto.StreamEvents, is.Subject)
		if err != nil {
			return nil, fmt.Errorf("read what was taken away: %w", err)
		}
		ev := new(nostr.Event)
		if !found || ev.UnmarshalJSON(m.Data) != nil || ev.ID != is.ID {
			w.Log.Warn("what was taken away is not in the log any more", "subject", is.Subject, "event", is.ID)
			continue
		}
		candidates = append(candidates, leaves(ev))
	}
	return candidates, nil
}

// leaves asks for the removal of an event whose time in the log is over.
func leaves(ev *nostr.Event) *policy.Candidate {
	c := policy.Release(ev)
	c.Action, c.Leaves = proto.ActionRemove, true
	return c
}

// purged asks for the removal of an event that is hidden.
func purged(ev *nostr.Event) *policy.Candidate {
	c := policy.Release(ev)
	c.Action, c.Purge = proto.ActionRemove, true
	return c
}

// banned are events that an operator wants removed, when their time is over. Announcements and states
// go last: what hangs on them is found by them. Requests stay, unserved: what they have taken away
// stays away.
func (w *Writer) banned(view *eventdb.View, now time.Time) (candidates []*policy.Candidate, err error) {
	for b := range w.Bans.All() {
		if !b.Over(w.Settings.DeletionGrace, now) {
			continue
		}
		hidden, err := view.HiddenBy(b.Name())
		var first, last []eventdb.Entry
		for _, e := range hidden {
			switch e.Kind {
			case nostr.KindDeletion, nostr.KindVanish:
			case nostr.KindAnnouncement, nostr.KindState:
				last = append(last, e)
			default:
				first = append(first, e)
			}
		}
		if len(first) == 0 {
			first = last
		}
		for _, e := range first[:min(len(first), purgeAtOnce)] {
			ev, failed := view.All().Event(hex.EncodeToString(e.ID[:]))
			if errors.Is(failed, eventdb.ErrNotFound) {
				continue // it has expired
			}
			if err = errors.Join(err, failed); err == nil {
				candidates = append(candidates, purged(ev))
			}
		}
		if err != nil {
			return nil, fmt.Errorf("look for what is banned: %w", err)
		}
		if len(candidates) > 0 {
			w.Log.Info("what was banned is removed", "ban", b.What, "events", len(candidates))
			return candidates, nil
		}
	}
	return nil, nil
}
