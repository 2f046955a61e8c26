// Package targets reads what discovery wants of relays from the stream GRASP_TARGETS: which relays there are to claim, and what one of them should
// be asked for.
package targets

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// Relays tells the names (as proto.EncodeRelay writes them) of all relays that are targets, the whole list whenever it has changed, until ctx ends.
// A list that nobody has taken yet is replaced by the next.
func Relays(ctx context.Context, js jetstream.JetStream, log *slog.Logger, names chan []string) error {
	wanted := map[string]bool{}
	return bus.Follow(ctx, js, bus.Reading{Stream: proto.StreamTargets, HeadersOnly: true}, log, func(m bus.Message) {
		key, err := proto.ParseTargetSubject(m.Subject)
		if err != nil {
			log.Error("a target cannot be read", "subject", m.Subject, "error", err)
			return
		}
		name, err := proto.EncodeRelay(key)
		if err != nil {
			log.Error("a target cannot be read", "subject", m.Subject, "error", err)
			return
		}
		gone := m.Header.Get(proto.HeaderGone) == "true"
		changed := wanted[name] == gone
		if gone {
			delete(wanted, name)
		} else {
			wanted[name] = true
		}
		if changed && (m.Pending == 0 || len(names) == 0) {
			replace(names, slices.Sorted(maps.Keys(wanted)))
		}
	})
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

	mu       sync.Mutex
	target   target.Target
	revision uint64
	past     target.Target // as it was at the revision asked for
	asked    uint64
	read     chan struct{}
	once     sync.Once
}

// NewFollower makes a follower that also keeps what the target was at a revision in the past, if the stream still knows.
func NewFollower(past uint64) *Follower {
	return &Follower{Changed: make(chan struct{}, 1), asked: past, read: make(chan struct{})}
}

// Run follows the relay's subject until ctx ends.
func (f *Follower) Run(ctx context.Context, js jetstream.JetStream, name string, log *slog.Logger) error {
	key, err := proto.DecodeRelay(name)
	if err != nil {
		return fmt.Errorf("follow target %s: %w", name, err)
	}
	subject, err := proto.TargetSubject(key)
	if err != nil {
		return fmt.Errorf("follow target %s: %w", name, err)
	}
	return bus.Follow(ctx, js, bus.Reading{Stream: proto.StreamTargets, Filters: []string{subject}}, log, func(m bus.Message) {
		var change proto.TargetChange
		if err := json.Unmarshal(m.Data, &change); err != nil {
			log.Error("a target cannot be read", "subject", m.Subject, "error", err)
			return
		}
		f.fold(change, m.Seq)
		if m.Pending == 0 {
			f.once.Do(func() { close(f.read) })
		}
		select {
		case f.Changed <- struct{}{}:
		default:
		}
	})
}

func (f *Follower) fold(change proto.TargetChange, revision uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target, f.revision = f.target.Apply(change), revision
	if revision <= f.asked {
		f.past = f.target
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

// Past is the target as it was at the revision that was asked for; nothing if the stream has forgotten.
func (f *Follower) Past() target.Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.past
}
