package relayconn

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// rereadEvery is how often all root events are asked for again, because events are deleted and
	// expire (NIP-40).
	rereadEvery = time.Hour
	// retryPause is the pause before a question that failed is asked again, and askTimeout bounds
	// one question.
	retryPause, askTimeout = time.Second, time.Minute
	// mostNewer is how many root events may be newer than what was confirmed. With more, a relay
	// is asked for all of them.
	mostNewer = 10_000
)

// askAtOnce is of how many repositories the root events are asked for before any are told.
const askAtOnce = 200

// rootKinds are the kinds of root events.
var rootKinds = []int{nostr.KindPatch, nostr.KindPR, nostr.KindIssue}

// Events is what is asked about accepted events.
type Events interface {
	CatchUp(ctx context.Context) error
	IDs(ctx context.Context, f nostr.Filter) iter.Seq2[[32]byte, error]
}

// list is the root events of one repository. They are asked for once, and followed in the log.
type list struct {
	users  map[*Wanted]bool
	ids    []string // sorted
	read   bool     // they were asked for
	due    bool     // they must be asked for, again if read
	asking bool
	heard  []string // since it was begun to ask for them
}

func rootFilters() (filters []string) {
	for _, kind := range rootKinds {
		filters = append(filters, proto.AnyEventOf(kind))
	}
	return filters
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
		l = &list{users: map[*Wanted]bool{}}
		t.lists[ref] = l
		t.askFor(l)
	}
	l.users[w] = true
}

func (t *Targets) unuse(w *Wanted, ref string) {
	l := t.lists[ref]
	if l == nil || !l.users[w] {
		return
	}
	if delete(l.users, w); len(l.users) == 0 {
		delete(t.lists, ref)
	}
}

// askFor has the root events of a repository asked for; the lock is held.
func (t *Targets) askFor(l *list) {
	l.due = true
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// hear takes in a message of the log.
func (t *Targets) hear(m bus.Message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer func() { t.seq = max(t.seq, m.Seq) }()
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(m.Data); err != nil {
		t.log.Error("an event of the log cannot be read", "subject", m.Subject, "error", err)
		return
	}
	id := strings.Clone(ev.ID)
	for _, ref := range nostr.RootRefs(ev) {
		l := t.lists[ref.String()]
		if l == nil {
			continue
		}
		if l.asking {
			l.heard = append(l.heard, id)
		}
		if n, has := slices.BinarySearch(l.ids, id); !has {
			l.ids = slices.Insert(l.ids, n, id)
			for w := range l.users {
				w.tellLater()
			}
		}
	}
}

// ask asks for root events whenever there is something to ask, until ctx ends.
func (t *Targets) ask(ctx context.Context) error {
	tick := time.NewTicker(rereadEvery)
	defer tick.Stop()
	failing := false
	for {
		more, err := t.askSome(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("the root events of repositories could not be asked for, trying again", "error", err)
		}
		if failing = err != nil; failing && sleep(ctx, retryPause) != nil {
			return nil
		}
		if more || failing {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
		case <-tick.C:
			t.mu.Lock()
			for _, l := range t.lists {
				t.askFor(l)
			}
			t.mu.Unlock()
		}
	}
}

// askSome asks for the root events of some repositories; more is false if there was nothing to ask.
func (t *Targets) askSome(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var refs []string
	var asked []*list
	t.mu.Lock()
	for ref, l := range t.lists {
		if l.due && len(refs) < askAtOnce {
			refs, asked = append(refs, ref), append(asked, l)
			l.due, l.asking, l.heard = false, true, nil
		}
	}
	t.mu.Unlock()
	if len(refs) == 0 {
		return false, nil
	}
	answers, err := t.rootsOf(ctx, refs)
	t.mu.Lock()
	defer t.mu.Unlock()
	for n, l := range asked { // some may be in use no more
		if l.asking = false; err != nil {
			l.due = true
			continue
		}
		ids := sortIDs(append(answers[n], l.heard...))
		changed := !l.read || !slices.Equal(ids, l.ids)
		l.read, l.heard = true, nil
		if changed {
			l.ids = ids
			for w := range l.users {
				w.tell()
			}
		}
	}
	return true, err
}

// rootsOf asks which root events repositories have.
func (t *Targets) rootsOf(ctx context.Context, refs []string) ([][]string, error) {
	if err := t.events.CatchUp(ctx); err != nil {
		return nil, err
	}
	lists := make([][]string, len(refs))
	for n, ref := range refs {
		for id, err := range t.events.IDs(ctx, nostr.Filter{Kinds: rootKinds, Tags: nostr.TagMap{"a": {ref}}}) {
			if err != nil {
				return nil, err
			}
			lists[n] = append(lists[n], hex.EncodeToString(id[:]))
		}
	}
	return lists, nil
}

// errMany: so many root events are newer that it is no use to tell them apart.
var errMany = errors.New("too many newer root events")

// newer are the root events that the log has after a sequence.
func (t *Targets) newer(ctx context.Context, seq uint64) (map[string]bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	newer := map[string]bool{}
	err := bus.Read(ctx, t.js, bus.Reading{Stream: proto.StreamEvents, Filters: rootFilters(), After: seq}, func(m bus.Message) {
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
