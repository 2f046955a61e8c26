package relayconn

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
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
)

// Targets knows what a worker should ask relays for: which relays are targets, which repositories
// are wanted from those that the worker has claimed (the stream GRASP_TARGETS), and which root
// events these repositories have (the accepted events).
type Targets struct {
	js      jetstream.JetStream
	events  query.Source
	window  time.Duration
	log     *slog.Logger
	names   chan []string
	stream  *bus.Follower
	begun   chan struct{} // closed when messages about repositories are passed on
	wake    chan struct{} // of capacity 1: root events must be asked for
	deleted chan struct{} // of capacity 1: some may have been deleted
	soon    time.Duration // within which they are asked for then

	order   sync.Mutex // held while root events are asked for or heard of
	mu      sync.Mutex
	relays  map[string]proto.Target // by name
	changed bool                    // the list of names
	wanted  map[string]*Wanted      // of claimed relays, by name
	lists   map[string]*list        // root events, by reference of the repository
	seq     uint64                  // of the log, up to which root events are followed
	last    history.Set             // that was wanted of any relay
}

// NewTargets makes Targets that have read nothing yet. The names (as proto.EncodeRelay writes them)
// of all relays that are targets are sent to names, the whole list whenever it has changed. A list
// that was not received yet is replaced by the next; names must have room for one. Root events that
// come one after the other are told together, when the window is over that the first has opened.
func NewTargets(js jetstream.JetStream, events query.Source, window time.Duration, names chan []string, log *slog.Logger) *Targets {
	t := &Targets{
		js: js, events: events, window: window, log: log, names: names,
		begun: make(chan struct{}), wake: make(chan struct{}, 1), deleted: make(chan struct{}, 1), soon: rereadSoon,
		relays: map[string]proto.Target{}, wanted: map[string]*Wanted{}, lists: map[string]*list{},
	}
	t.stream = bus.NewFollower(js, bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyTarget}, Idle: t.idle}, log, t.takeRelays)
	return t
}

// Seq says how far the stream has been read.
func (t *Targets) Seq() uint64 { return t.stream.Seq() }

// Run follows the stream, and the root events, until ctx ends.
func (t *Targets) Run(ctx context.Context) error {
	base, err := bus.LastSeq(ctx, t.js, proto.StreamTargets)
	if err != nil {
		return fmt.Errorf("follow targets: %w", err)
	}
	t.mu.Lock()
	t.seq = t.events.Seq() // what is asked for later has everything up to there
	t.mu.Unlock()
	wanted := bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyWanted}, After: base}
	repos := bus.NewFollower(t.js, wanted, t.log, t.takeRepos)
	roots := query.Hear(t.js, t.events, append(rootKinds, nostr.KindDeletion), t.hear)
	close(t.begun)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.stream.Run(ctx) })
	group.Go(func() error { return repos.Run(ctx) })
	group.Go(func() error { return roots.Run(ctx) })
	group.Go(func() error { return t.ask(ctx) })
	return group.Wait()
}

// takeRelays reads messages that say whether a relay is a target.
func (t *Targets) takeRelays(messages []bus.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range messages {
		name, relay, err := parseRelay(m)
		if err != nil {
			t.log.Error("a target cannot be read", "subject", m.Subject, "error", err)
			continue
		}
		_, was := t.relays[name]
		if relay.URL == "" {
			delete(t.relays, name)
		} else {
			t.relays[name] = relay
		}
		if was != (relay.URL != "") {
			t.changed = true
		}
		if w := t.wanted[name]; w != nil {
			w.tell()
		}
	}
	return nil
}

// parseRelay reads a message about a relay; one that is no target has no URL.
func parseRelay(m bus.Message) (name string, relay proto.Target, err error) {
	key, err := proto.ParseTargetSubject(m.Subject)
	if err != nil {
		return "", relay, err
	}
	if name, err = proto.EncodeRelay(key); err != nil || len(m.Data) == 0 {
		return name, relay, err
	}
	return name, relay, json.Unmarshal(m.Data, &relay)
}

// takeRepos reads messages that say what is wanted of a repository.
func (t *Targets) takeRepos(messages []bus.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range messages {
		key, _, err := proto.ParseWantedSubject(m.Subject)
		name, _ := proto.EncodeRelay(key)
		if w := t.wanted[name]; err == nil && w != nil {
			w.take(m)
		}
	}
	return nil
}

// idle is called when everything was read that is there. Until then the list of names would be half
// a list.
func (t *Targets) idle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.changed {
		return
	}
	t.changed = false
	replace(t.names, slices.Sorted(maps.Keys(t.relays)))
}

// replace sends a value on a channel of capacity 1, in place of one that was not received yet.
func replace[T any](to chan T, value T) {
	for {
		select {
		case to <- value:
			return
		default:
		}
		select {
		case <-to:
		default:
		}
	}
}
