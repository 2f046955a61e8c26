// Package publish keeps GRASP_TARGETS in line with what is wanted. It folds the stream into what is published, and writes only the
// difference, on the condition that nobody wrote to the relay's subject since what is wanted was worked out: of several replicas one wins, the
// others look again and find nothing left to do, and none takes back what another one already knows better.
package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/progress"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// snapshotAfter is how many messages a relay's subject may hold before one snapshot replaces them.
const snapshotAfter = 64

// ErrOvertaken: another replica was first with some relay's target, and may know more. What is wanted is to be worked out anew.
var ErrOvertaken = errors.New("another replica was first")

// Publisher follows GRASP_TARGETS and writes to it.
type Publisher struct {
	js   jetstream.JetStream
	head *bus.Head
	log  *slog.Logger

	mu        sync.Mutex
	published map[string]relay // by identity
	read      progress.Progress
}

// relay is what is published for one relay.
type relay struct {
	target   target.Target
	last     uint64 // sequence of its last message
	messages int    // since the last snapshot
}

// New makes a publisher that has read nothing yet.
func New(b *bus.Bus, log *slog.Logger) *Publisher {
	p := &Publisher{js: b.JS, log: log, published: map[string]relay{}}
	p.head = b.Head(proto.StreamTargets, p.read.WaitFor)
	return p
}

// Follow folds the stream in until ctx ends.
func (p *Publisher) Follow(ctx context.Context) error {
	return bus.Follow(ctx, p.js, bus.Reading{Stream: proto.StreamTargets}, p.log, func(m bus.Message) {
		if err := p.fold(m); err != nil {
			p.log.Error("a message of targets cannot be read", "subject", m.Subject, "error", err)
		}
	})
}

func (p *Publisher) fold(m bus.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.read.Advance(m.Seq)
	key, err := proto.ParseTargetSubject(m.Subject)
	if err != nil {
		return err
	}
	r := p.published[key]
	r.last, r.messages = m.Seq, r.messages+1
	var change proto.TargetChange
	// A message that cannot be read is there all the same: whoever writes next must expect it.
	if err = json.Unmarshal(m.Data, &change); err != nil {
		err = fmt.Errorf("decode change: %w", err)
	} else {
		r.target = r.target.Apply(change)
	}
	if change.Snapshot {
		r.messages = 1
	}
	p.published[key] = r
	return err
}

// CatchUp waits until the stream has been folded in as it is at some time after the call.
func (p *Publisher) CatchUp(ctx context.Context) error {
	if err := p.head.Read(ctx); err != nil {
		return fmt.Errorf("read targets: %w", err)
	}
	return nil
}

// WaitFor waits until the stream has been folded in up to seq.
func (p *Publisher) WaitFor(ctx context.Context, seq uint64) error {
	if err := p.read.WaitFor(ctx, seq); err != nil {
		return fmt.Errorf("wait for targets to be read up to %d: %w", seq, err)
	}
	return nil
}

// Seq is the sequence up to which the stream has been folded in.
func (p *Publisher) Seq() uint64 { return p.read.Seq() }

// Publish brings the stream in line with wanted and returns how many messages that took. Targets that it finds published and that are
// not wanted are withdrawn. asOf is what [Publisher.Seq] was before wanted was worked out: relays that another replica has written to since are
// left alone, and the error is [ErrOvertaken] once the others are done.
func (p *Publisher) Publish(ctx context.Context, wanted map[string]target.Target, asOf uint64) (sent int, err error) {
	keys := map[string]bool{}
	p.mu.Lock()
	for key, r := range p.published {
		keys[key] = r.target.Exists()
	}
	p.mu.Unlock()
	for key := range wanted {
		keys[key] = true
	}
	var overtaken error
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !keys[key] {
			continue
		}
		n, err := p.bring(ctx, key, wanted[key], asOf)
		sent += n
		switch {
		case errors.Is(err, ErrOvertaken):
			overtaken = ErrOvertaken
		case err != nil:
			return sent, fmt.Errorf("publish target of %s: %w", key, err)
		}
	}
	return sent, overtaken
}

// bring publishes one relay's changes.
func (p *Publisher) bring(ctx context.Context, key string, want target.Target, asOf uint64) (sent int, err error) {
	subject, err := proto.TargetSubject(key)
	if err != nil {
		p.log.Warn("a relay is passed over, its name does not fit", "relay", key, "error", err)
		return 0, nil
	}
	p.mu.Lock()
	r := p.published[key]
	p.mu.Unlock()
	if r.last > asOf {
		return 0, ErrOvertaken
	}
	changes := target.Diff(r.target, want)
	if len(changes) == 0 {
		p.share(key, r.last, want)
		return 0, nil
	}
	replace := !want.Exists()
	if want.Exists() && r.messages+len(changes) > snapshotAfter {
		changes, replace = target.Snapshot(want), true
	}
	sent, last, err := p.send(ctx, subject, r.last, changes, replace)
	if err == nil {
		p.share(key, last, want)
	}
	return sent, err
}

// send writes the changes one after the other, each on the condition that the one before is the last of its subject. It returns when they
// are folded in, or what another replica wrote instead; last is the sequence of the last one.
func (p *Publisher) send(ctx context.Context, subject string, before uint64, changes []proto.TargetChange, replace bool) (sent int, last uint64, err error) {
	last = before
	for i, c := range changes {
		payload, err := json.Marshal(c)
		if err != nil {
			return sent, last, fmt.Errorf("encode change: %w", err)
		}
		msg := &nats.Msg{Subject: subject, Data: payload, Header: nats.Header{}}
		if replace && i == 0 {
			msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		}
		if c.Gone {
			msg.Header.Set(proto.HeaderGone, "true")
		}
		ack, err := p.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last))
		if bus.IsConflict(err) {
			return sent, last, errors.Join(p.lookAgain(ctx), ErrOvertaken)
		}
		if err != nil {
			return sent, last, fmt.Errorf("write change: %w", err)
		}
		last = ack.Sequence
		sent++
	}
	return sent, last, p.WaitFor(ctx, last)
}

// lookAgain reads what another replica wrote.
func (p *Publisher) lookAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return p.CatchUp(ctx)
}

// share lets the published target, which equals the wanted one, use its lists, so that the ids are in memory once and the next comparison
// costs nothing. A target that another message has changed since last is left alone.
func (p *Publisher) share(key string, last uint64, want target.Target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.published[key]; r.last == last {
		r.target = want
		p.published[key] = r
	}
}
