// Package targets reads what discovery wants of relays from the stream GRASP_TARGETS: which relays
// there are to claim, and what one of them should be asked for.
package targets

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/progress"
	"tendril.dev/lib/roots"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// Less knows the relays that only announcements in purgatory list. Where a worker has no room for
// all relays, they give way. It is safe for concurrent use; the zero value knows none.
type Less struct {
	mu    sync.Mutex
	names map[string]bool
}

// Has reports whether the relay of that name is one of them.
func (l *Less) Has(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[name]
}

// set notes whether a relay is one of them, and reports whether that is news.
func (l *Less) set(name string, less bool) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names[name] == less {
		return false
	}
	if l.names == nil {
		l.names = map[string]bool{}
	}
	if less {
		l.names[name] = true
	} else {
		delete(l.names, name)
	}
	return true
}

// Relays tells the names (as proto.EncodeRelay writes them) of all relays that are targets, the
// whole list whenever it has changed, until ctx ends. A list that nobody has taken yet is replaced
// by the next; names must have room for one. It keeps less in step, and tells the list again when
// that changes. read says how far the stream has been read.
func Relays(ctx context.Context, js jetstream.JetStream, log *slog.Logger, names chan []string, less *Less, read *progress.Progress) error {
	wanted := map[string]bool{}
	changed := false
	// While there is more to read the list would be half a list.
	idle := func() {
		if changed {
			changed = false
			replace(names, slices.Sorted(maps.Keys(wanted)))
		}
	}
	return bus.Follow(ctx, js, bus.Reading{Stream: proto.StreamTargets, Idle: idle}, log, func(m bus.Message) {
		defer read.Advance(m.Seq)
		if _, err := proto.ParseRootsSubject(m.Subject); err == nil {
			return // a list of root events, which is no target
		}
		name, err := nameOf(m.Subject)
		if err != nil {
			log.Error("a target cannot be read", "subject", m.Subject, "error", err)
		} else {
			gone := m.Header.Get(proto.HeaderGone) == "true"
			if less.set(name, !gone && m.Header.Get(proto.HeaderLevel) == string(proto.LevelStateOnly)) {
				changed = true
			}
			if wanted[name] == gone {
				changed = true
				if gone {
					delete(wanted, name)
				} else {
					wanted[name] = true
				}
			}
		}
	})
}

func nameOf(subject string) (string, error) {
	key, err := proto.ParseTargetSubject(subject)
	if err != nil {
		return "", err
	}
	return proto.EncodeRelay(key)
}

func replace(names chan []string, list []string) {
	for {
		select {
		case names <- list:
			return
		default:
		}
		select {
		case <-names:
		default:
		}
	}
}

// Follower keeps the target of one relay.
type Follower struct {
	// Changed is sent on when the target may be another.
	Changed chan struct{}
	// Unlisted says that who confirmed the revision asked for knew no lists of root events: of
	// repositories with a list nothing is known of the past then. It is set before Run.
	Unlisted bool

	lists *roots.Reader
	read  chan struct{}
	over  func() // others may read their targets

	reading sync.Mutex    // held while changes are taken or shown; of what follows
	folded  target.Folded // with changes of which parts are still to come
	before  []string      // references that a snapshot says were as they are at the revision asked for
	last    told          // what the changes have said that are whole
	asked   told          // what they said at the revision asked for
	held    map[string]heldList
	again   *time.Timer // shows the target again; nil: all of it is shown
	told    bool        // that a list cannot be read

	mu       sync.Mutex
	target   target.Target
	revision uint64
	past     target.Target // as it was at the revision asked for
}

// told is what changes have said up to a revision, with the names of lists of root events.
type told struct {
	revision uint64
	target   target.Target
	named    map[string]target.Named
}

// NewFollower makes a follower that also keeps what the target was at a revision in the past, if
// the stream still knows. It reads lists of root events with lists; nil: with a reader of its own.
func NewFollower(past uint64, lists *roots.Reader) *Follower {
	return &Follower{Changed: make(chan struct{}, 1), lists: lists, asked: told{revision: past}, read: make(chan struct{})}
}

// readAtOnce is how many targets a worker reads at once: one may have hundreds of thousands of root
// events, and a worker that starts may claim hundreds of relays.
const readAtOnce = 4

// Turns bound how many targets are read at once, for all followers that share it.
type Turns struct{ taken *semaphore.Weighted }

// NewTurns returns turns of which none is taken.
func NewTurns() *Turns { return &Turns{semaphore.NewWeighted(readAtOnce)} }

// Run follows the relay's subject until ctx ends. It waits for a turn until it has read the target
// as it stands; nil: for none.
func (f *Follower) Run(ctx context.Context, js jetstream.JetStream, name string, turns *Turns, log *slog.Logger) error {
	key, err := proto.DecodeRelay(name)
	if err != nil {
		return fmt.Errorf("follow target %s: %w", name, err)
	}
	subject, err := proto.TargetSubject(key)
	if err != nil {
		return fmt.Errorf("follow target %s: %w", name, err)
	}
	if f.lists == nil {
		f.lists = roots.NewReader(js)
	}
	f.over = func() {}
	if turns != nil {
		if turns.taken.Acquire(ctx, 1) != nil {
			return nil // the end
		}
		f.over = sync.OnceFunc(func() { turns.taken.Release(1) })
		defer f.over()
	}
	defer f.stop()
	all := false
	reading := bus.Reading{Stream: proto.StreamTargets, Filters: []string{subject}, Idle: func() {
		if all {
			return
		}
		f.reading.Lock()
		defer f.reading.Unlock()
		if all = f.showPast(ctx, log) && f.show(ctx, mostTries, log); all {
			close(f.read)
			f.over()
		}
	}}
	return bus.Follow(ctx, js, reading, log, func(m bus.Message) {
		f.reading.Lock()
		defer f.reading.Unlock()
		if f.take(m, log) && all {
			f.show(ctx, 1, log)
		}
	})
}

// take reads one message of the relay's subject, and reports whether a change is whole by that. The
// parts of a change are no target: a snapshot would look as if most had been withdrawn.
func (f *Follower) take(m bus.Message, log *slog.Logger) (whole bool) {
	var change proto.TargetChange
	if err := json.Unmarshal(m.Data, &change); err != nil {
		log.Error("a target cannot be read", "subject", m.Subject, "error", err)
		return false
	}
	f.folded.Take(change)
	f.noteBefore(change)
	if change.More {
		return false
	}
	f.last = told{m.Seq, f.folded.Target(), f.folded.Named()}
	switch {
	case m.Seq <= f.asked.revision:
		f.asked.target, f.asked.named = f.last.target, f.last.named
	case len(f.before) > 0 && !f.asked.target.Exists():
		f.asked.target = target.Target{URL: f.last.target.URL, Repos: map[string]target.Repo{}}
		f.asked.named = f.last.named
		for _, ref := range f.before {
			f.asked.target.Repos[ref] = f.last.target.Repos[ref]
		}
	}
	f.before = nil
	return true
}

// noteBefore keeps what a snapshot says of the past. Those that it replaced may have gone from the
// stream before they were read.
func (f *Follower) noteBefore(change proto.TargetChange) {
	if change.Snapshot {
		f.before = nil
	}
	for _, c := range change.Repos {
		if c.Since > 0 && c.Since <= f.asked.revision {
			f.before = append(f.before, c.Ref)
		}
	}
}

// Read is closed when the target was read as it stood.
func (f *Follower) Read() <-chan struct{} { return f.read }

// Current is the target now and the revision that says so.
func (f *Follower) Current() (target.Target, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target, f.revision
}

// TakePast returns the target as it was at the revision that was asked for, and keeps it no longer.
// Of what a snapshot has replaced since, it gives the repositories that have not changed since.
func (f *Follower) TakePast() target.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	past := f.past
	f.past = target.Target{}
	return past
}
