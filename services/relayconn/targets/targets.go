// Package targets reads what a worker should ask relays for: which relays are targets, which
// repositories are wanted from one of them (the stream GRASP_TARGETS), and which root events these
// repositories have (the accepted events).
package targets

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// Targets follows GRASP_TARGETS for a whole worker. It keeps which relays are targets; which
// repositories are wanted is kept by the followers of the relays that the worker has claimed. The
// lock of roots guards it.
type Targets struct {
	js    jetstream.JetStream
	log   *slog.Logger
	roots *Roots
	names chan []string

	stream    *bus.Follower
	begun     chan struct{}           // closed when messages about repositories are passed on
	relays    map[string]proto.Target // by name
	followers map[string]*Follower    // by name
	changed   bool                    // the list of names
}

// New makes Targets that have read nothing yet. The names (as proto.EncodeRelay writes them) of all
// relays that are targets are sent to names, the whole list whenever it has changed. A list that was
// not received yet is replaced by the next; names must have room for one.
func New(js jetstream.JetStream, roots *Roots, names chan []string, log *slog.Logger) *Targets {
	t := &Targets{
		js: js, log: log, roots: roots, names: names, begun: make(chan struct{}),
		relays: map[string]proto.Target{}, followers: map[string]*Follower{},
	}
	t.stream = bus.NewFollower(js, bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyTarget}, Idle: t.idle}, log, t.takeRelays)
	return t
}

// Seq says how far the stream has been read.
func (t *Targets) Seq() uint64 { return t.stream.Seq() }

// Run follows the stream, and the root events, until ctx ends.
func (t *Targets) Run(ctx context.Context) error {
	base, err := lastSeq(ctx, t.js, proto.StreamTargets, t.log)
	if err != nil {
		return nil // the end
	}
	reading := bus.Reading{Stream: proto.StreamTargets, Filters: []string{proto.AnyWanted}, After: base, Idle: t.idle}
	repos := bus.NewFollower(t.js, reading, t.log, t.takeRepos)
	close(t.begun)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return t.roots.run(ctx) })
	group.Go(func() error { return t.stream.Run(ctx) })
	group.Go(func() error { return repos.Run(ctx) })
	return group.Wait()
}

// takeRelays reads messages that say whether a relay is a target.
func (t *Targets) takeRelays(messages []bus.Message) error {
	t.roots.mu.Lock()
	defer t.roots.mu.Unlock()
	for _, m := range messages {
		name, relay, err := parseRelay(m)
		if err != nil {
			t.log.Error("a target cannot be read", "subject", m.Subject, "error", err)
			continue
		}
		before, was := t.relays[name]
		if relay.URL == "" {
			delete(t.relays, name)
		} else {
			t.relays[name] = relay
		}
		if was != (relay.URL != "") || before.Level != relay.Level {
			t.changed = true
		}
		if f := t.followers[name]; f != nil {
			f.moved = true
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
	t.roots.mu.Lock()
	defer t.roots.mu.Unlock()
	for _, m := range messages {
		key, _, err := proto.ParseWantedSubject(m.Subject)
		name, _ := proto.EncodeRelay(key)
		f := t.followers[name]
		if err != nil || f == nil {
			continue
		}
		if err := f.take(m); err != nil {
			t.log.Error("a target cannot be read", "subject", m.Subject, "error", err)
		}
	}
	return nil
}

// idle is called when everything was read that is there. Until then the list of names would be half
// a list, and what is wanted of a relay half of it.
func (t *Targets) idle() {
	t.roots.mu.Lock()
	defer t.roots.mu.Unlock()
	if t.changed {
		t.changed = false
		replace(t.names, slices.Sorted(maps.Keys(t.relays)))
	}
	for _, f := range t.followers {
		switch {
		case !f.shown:
		case len(f.news) > 0:
			f.show()
		case f.moved:
			f.tell()
		}
		f.moved = false
	}
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
