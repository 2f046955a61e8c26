package relayconn

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// All root events are asked for again every rereadEvery, because events expire (NIP-40), and
	// within rereadSoon of a deletion.
	rereadEvery, rereadSoon = time.Hour, time.Minute
	// retryPause is the pause before a question that failed is asked again, and askTimeout bounds
	// one question.
	retryPause, askTimeout = time.Second, time.Minute
	// askAtOnce is of how many repositories the root events are asked for before any are told.
	askAtOnce = 200
	// mostNewer is how many root events may be newer than what was confirmed. With more, a relay
	// is asked for all of them.
	mostNewer = 10_000
)

// rootKinds are the kinds of root events.
var rootKinds = []int{nostr.KindPatch, nostr.KindPR, nostr.KindIssue}

// list is the root events of one repository. They are asked for once, and followed in the log.
type list struct {
	users map[*Wanted]bool
	ids   []string // sorted
	read  bool     // they were asked for
	due   bool     // they must be asked for, again if read
}

// sortIDs returns the ids sorted and each once; it may reorder its argument.
func sortIDs(ids []string) []string {
	slices.Sort(ids)
	return slices.Clip(slices.Compact(ids))
}

// use notes that a relay is asked for a repository; the lock is held.
func (t *Targets) use(w *Wanted, ref string) {
	l := t.lists[ref]
	if l == nil {
		l = &list{users: map[*Wanted]bool{}, due: true}
		t.lists[ref] = l
		replace(t.wake, struct{}{})
	}
	l.users[w] = true
}

func (t *Targets) unuse(w *Wanted, ref string) {
	if l := t.lists[ref]; l != nil {
		if delete(l.users, w); len(l.users) == 0 {
			delete(t.lists, ref)
		}
	}
}

// hear takes in root events and deletions that were accepted.
func (t *Targets) hear(accepted []eventdb.Record) {
	t.order.Lock()
	defer t.order.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range accepted {
		if t.seq = max(t.seq, r.Seq); r.Event.Kind == nostr.KindDeletion {
			replace(t.deleted, struct{}{})
			continue
		}
		id := strings.Clone(r.Event.ID)
		for _, ref := range nostr.RootRefs(r.Event) {
			l := t.lists[ref.String()]
			if l == nil {
				continue
			}
			if n, has := slices.BinarySearch(l.ids, id); !has {
				l.ids = slices.Insert(l.ids, n, id)
				for w := range l.users {
					w.tellLater()
				}
			}
		}
	}
}

// ask asks for root events whenever there is something to ask, until ctx ends.
func (t *Targets) ask(ctx context.Context) error {
	due := time.Now().Add(rereadEvery)
	failing := false
	for {
		more, err := t.askSome(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("the root events of repositories could not be asked for, trying again", "error", err)
		}
		retry := (<-chan time.Time)(nil)
		if failing = err != nil; failing {
			retry = time.After(retryPause)
		} else if more {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-t.wake:
		case <-t.deleted:
			if soon := time.Now().Add(t.soon); soon.Before(due) {
				due = soon
			}
		case <-time.After(time.Until(due)):
			t.mu.Lock()
			for _, l := range t.lists {
				l.due = true
			}
			t.mu.Unlock()
			due = time.Now().Add(rereadEvery)
		}
	}
}

// askSome asks for the root events of some repositories; more is false if there was nothing to ask.
func (t *Targets) askSome(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	t.order.Lock() // what is asked for and what is heard follow each other
	defer t.order.Unlock()
	asked, answers := map[string]*list{}, map[string][]string{}
	t.mu.Lock()
	for ref, l := range t.lists {
		if l.due && len(asked) < askAtOnce {
			asked[ref] = l
		}
	}
	t.mu.Unlock()
	if len(asked) == 0 {
		return false, nil
	}
	if err := t.events.CatchUp(ctx); err != nil {
		return false, err
	}
	for ref := range asked {
		for id, err := range t.events.IDs(ctx, nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{"a": {ref}}}) {
			if err != nil {
				return false, err
			}
			answers[ref] = append(answers[ref], hex.EncodeToString(id[:]))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref, l := range asked { // some may be in use no more
		ids := sortIDs(answers[ref])
		changed := !l.read || !slices.Equal(ids, l.ids)
		if l.read, l.due = true, false; changed {
			l.ids = ids
			for w := range l.users {
				w.tell()
			}
		}
	}
	return true, nil
}

// errMany: so many root events are newer that it is no use to tell them apart.
var errMany = errors.New("too many newer root events")

// newer are the root events that the log has after a sequence.
func (t *Targets) newer(ctx context.Context, seq uint64) (map[string]bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	newer, reading := map[string]bool{}, bus.Reading{Stream: proto.StreamEvents, After: seq}
	for _, kind := range rootKinds {
		reading.Filters = append(reading.Filters, proto.AnyEventOf(kind))
	}
	err := bus.Read(ctx, t.js, reading, func(m bus.Message) {
		ev := new(nostr.Event)
		if ev.UnmarshalJSON(m.Data) != nil {
			return
		}
		newer[ev.ID] = true
		if len(newer) > mostNewer {
			cancel(errMany)
		}
	})
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, fmt.Errorf("read root events after %d: %w", seq, err)
	}
	return newer, nil
}
