// Package publish keeps GRASP_TARGETS in line with what is wanted. It folds the stream into what is
// published, and writes only the difference, on the condition that nobody wrote to the relay's
// subject since what is wanted was worked out: of several replicas one wins, the others look again
// and find nothing left to do, and none takes back what another one already knows better.
package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/progress"
	"tendril.dev/lib/roots"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

const (
	// snapshotAfter is how many messages a relay's subject may hold before a snapshot replaces
	// them; more where the last snapshot took many.
	snapshotAfter = 64
	// maxChange bounds one message, in bytes; the bus may allow less.
	maxChange = 512 << 10
	// headerRoom is what the headers of a message take at most, in bytes.
	headerRoom = 1 << 10
	// goneKept is how long the stream says that a relay is no target any more. forgetAfter is how
	// long this replica knows it after reading it: longer than the stream, and less than a day even
	// if it reads it at the last moment.
	goneKept    = 11 * time.Hour
	forgetAfter = 12 * time.Hour
	// maxFailures is how many relays in a row may fail before it is taken to be the bus.
	maxFailures = 3
)

// ErrOvertaken: another replica was first with some relay's target, and may know more. What is
// wanted must be worked out anew.
var ErrOvertaken = errors.New("another replica was first")

// errUnfit: this target cannot be published, however often it is tried.
var errUnfit = errors.New("it does not fit on the bus")

// Publisher follows GRASP_TARGETS and writes to it. Of what others write it takes the headers: a
// message says the sum of the whole target, which is that of what is wanted here nearly always.
// What the messages of a relay say is read only where it is not.
type Publisher struct {
	js         jetstream.JetStream
	head       *bus.Head
	log        *slog.Logger
	maxPayload int // bytes of a message

	mu        sync.Mutex
	published map[string]relay // by identity
	listed    map[string]relay // lists of root events, by reference of the repository
	read      progress.Progress

	// Touched by Publish only.
	failed map[string]string   // why relays could not be published the last time, by identity
	known  map[string]contents // what the messages of relays say, by identity
	ids    wholeIDs
	lists  lists
	reader *roots.Reader
}

// New makes a publisher that has read nothing yet. It asks whole for whole ids.
func New(b *bus.Bus, whole Roots, log *slog.Logger) *Publisher {
	p := &Publisher{
		js: b.JS, log: log, maxPayload: int(b.Conn.MaxPayload()),
		published: map[string]relay{}, listed: map[string]relay{}, failed: map[string]string{}, known: map[string]contents{},
		ids: wholeIDs{roots: whole}, lists: newLists(), reader: roots.NewReader(b.JS),
	}
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
	if ref, err := proto.ParseRootsSubject(m.Subject); err == nil {
		p.listed[ref] = p.listed[ref].after(m)
		return nil
	}
	key, err := proto.ParseTargetSubject(m.Subject)
	if err != nil {
		return err
	}
	p.published[key] = p.published[key].after(m)
	return nil
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

// Publish brings the stream in line with wanted and returns how many messages that took. Targets
// that it finds published and that are not wanted are withdrawn. asOf is what [Publisher.Seq] was
// before wanted was worked out: relays that another replica has written to since are left alone,
// and the error is [ErrOvertaken] once the others are done.
//
// A relay that cannot be published keeps nobody else waiting: it is told of once, and comes last
// the next time. One that can never be is passed over; any other error is returned once all are
// done, or once it is plain that the bus takes nothing.
func (p *Publisher) Publish(ctx context.Context, targets map[string]wanted.Target, asOf uint64) (sent int, err error) {
	defer p.ids.forget()
	keys := p.keys(targets)
	r := round{targets, asOf, map[string]brought{}}
	var overtaken, failed error
	failures := 0
	for _, key := range keys {
		n, err := p.bring(ctx, key, r)
		sent += n
		switch {
		case err == nil:
			failures = 0
			delete(p.failed, key)
			continue
		case ctx.Err() != nil:
			return sent, err
		case errors.Is(err, ErrOvertaken):
			overtaken = ErrOvertaken
			continue
		}
		p.tellFailure(key, err)
		if errors.Is(err, errUnfit) {
			continue
		}
		failed = fmt.Errorf("publish target of %s: %w", key, err)
		if failures++; failures == maxFailures {
			return sent, failed
		}
	}
	switch {
	case failed != nil:
		return sent, failed
	case overtaken != nil:
		return sent, overtaken
	}
	n, err := p.finishLists(ctx, r)
	if sent += n; err != nil {
		return sent, err
	}
	p.ids.settle()
	n, err = p.withdrawLists(ctx, targets, time.Now())
	return sent + n, err
}

// keys are the relays to look at: what is wanted or published, those that failed the last time at
// the end.
func (p *Publisher) keys(targets map[string]wanted.Target) []string {
	all := map[string]bool{}
	p.mu.Lock()
	for key, r := range p.published {
		switch {
		case r.exists():
			all[key] = true
		case time.Since(r.gone) > forgetAfter:
			delete(p.published, key)
			delete(p.known, key)
		}
	}
	p.mu.Unlock()
	for key := range targets {
		all[key] = true
	}
	for key := range p.failed {
		if !all[key] {
			delete(p.failed, key)
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		_, aFailed := p.failed[a]
		_, bFailed := p.failed[b]
		if aFailed != bFailed {
			return map[bool]int{false: -1, true: 1}[aFailed]
		}
		return strings.Compare(a, b)
	})
}

// tellFailure logs why a relay could not be published, once.
func (p *Publisher) tellFailure(key string, err error) {
	if why := err.Error(); p.failed[key] != why {
		p.failed[key] = why
		p.log.Warn("a relay's target could not be published; the others are", "relay", key, "error", err)
	}
}

// stands is how a relay stands.
func (p *Publisher) stands(key string) relay {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published[key]
}

// round is one time of publishing.
type round struct {
	wanted map[string]wanted.Target
	asOf   uint64 // what is wanted was worked out when the stream had been read up to here, or later
	lists  map[string]brought
}

// bring publishes one relay's changes, and the lists of root events that they name.
func (p *Publisher) bring(ctx context.Context, key string, now round) (sent int, err error) {
	r, want := p.stands(key), now.wanted[key]
	if r.last > now.asOf {
		return 0, ErrOvertaken
	}
	have, read := p.known[key], false
	switch {
	case r.last == 0:
		if _, err := proto.TargetSubject(key); err != nil {
			return 0, fmt.Errorf("%w: %w", errUnfit, err) // before ids are asked for
		}
		have = contents{changed: map[string]uint64{}}
	case have.at != r.last:
		sum := want.Sum()
		if want.Exists() && (r.sum == sum || r.sum == listsSum+sum && p.hasLists(want, now)) {
			p.know(key, contents{at: r.last, target: want, lists: r.sum != sum})
			return 0, nil
		}
		if have, err = p.readAgain(ctx, key, r); err != nil {
			return 0, err
		}
		read = true
	}
	limit := min(maxChange, p.maxPayload-headerRoom)
	named, want, sent, err := p.listsFor(ctx, have.target, want, now)
	if err != nil {
		return sent, err
	}
	changes, want, err := p.ids.changes(ctx, have, want, named, limit)
	if errors.Is(err, errNotAtHand) {
		if have, err = p.readAgain(ctx, key, r); err == nil {
			changes, want, err = p.ids.changes(ctx, have, want, named, limit)
		}
	}
	if err != nil {
		return sent, err
	}
	if len(changes) == 0 && read && want.Exists() && r.sum != have.sum(want) {
		// It says no sum, or that of an earlier version. One more message, and nobody reads it
		// again.
		changes = []proto.TargetChange{{URL: want.URL, Bootstrap: want.Bootstrap}}
	}
	if len(changes) == 0 && !have.broken {
		have.target = want // its lists are in memory once
		p.know(key, have)
		return sent, nil
	}
	replace := want.Exists() && (have.broken || r.messages+len(changes) > max(snapshotAfter, 2*r.parts))
	if replace {
		n := 0
		have, want, changes, n, err = p.renew(ctx, key, r, have, want, now, limit)
		if sent += n; err != nil {
			return sent, err
		}
	}
	have.lists = have.lists || names(changes)
	msgs, err := p.messages(key, changes, want, have.lists, replace || !want.Exists())
	if err != nil {
		return sent, err
	}
	n, err := p.write(ctx, key, msgs, changes, want, have, r)
	return sent + n, err
}

// renew returns a snapshot of what is wanted of a relay, and brings the lists up to date that it
// names.
func (p *Publisher) renew(ctx context.Context, key string, r relay, have contents, want wanted.Target, now round, limit int) (contents, wanted.Target, []proto.TargetChange, int, error) {
	if have.changed == nil {
		var err error
		if have, err = p.readAgain(ctx, key, r); err != nil {
			return have, want, nil, 0, err
		}
	}
	named, want, sent, err := p.listsFor(ctx, wanted.Target{}, want, now)
	if err != nil {
		return have, want, nil, sent, err
	}
	whole, want, err := p.ids.target(ctx, have, want, named)
	if err != nil {
		return have, want, nil, sent, err
	}
	changes := have.snapshot(want, whole, named, limit)
	have.lists, have.broken = false, false
	return have, want, changes, sent, nil
}

// write sends the changes and notes what is published then.
func (p *Publisher) write(ctx context.Context, key string, msgs []*nats.Msg, changes []proto.TargetChange, want wanted.Target, have contents, r relay) (sent int, err error) {
	delete(p.known, key) // unless all of it is written
	sent, seqs, err := p.send(ctx, msgs, r)
	if err != nil {
		return sent, err
	}
	for i, c := range changes {
		have.note(c, seqs[i])
	}
	have.at, have.target = seqs[len(seqs)-1], want
	p.know(key, have)
	return sent, nil
}

// messages writes the changes down, all or none. The first of those that replace what was said
// before says so, and the last one says the sum of what is wanted. Where the target names lists of
// root events, the sum is none that earlier versions take for theirs: they read the target, and
// write the root events that they do not find.
func (p *Publisher) messages(key string, changes []proto.TargetChange, want wanted.Target, lists, replace bool) ([]*nats.Msg, error) {
	subject, err := proto.TargetSubject(key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, err)
	}
	var msgs []*nats.Msg
	for i, c := range changes {
		payload, err := json.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("%w: encode change: %w", errUnfit, err)
		}
		if len(payload) > p.maxPayload-headerRoom {
			return nil, fmt.Errorf("%w: a change of %d bytes", errUnfit, len(payload))
		}
		msg := &nats.Msg{Subject: subject, Data: payload, Header: nats.Header{}}
		if replace && i == 0 {
			msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		}
		if level := want.Level(); level != "" {
			msg.Header.Set(proto.HeaderLevel, string(level))
		}
		if c.Gone {
			msg.Header.Set(proto.HeaderGone, "true")
			msg.Header.Set(jetstream.MsgTTLHeader, goneKept.String())
		} else if i == len(changes)-1 {
			msg.Header.Set(proto.HeaderSum, contents{lists: lists}.sum(want))
		}
		msgs = append(msgs, msg)
	}
	return msgs, nil
}

// send publishes the messages one after the other, each on the condition that the one before is the
// last of its subject. It returns when they are folded in, or what another replica wrote instead;
// seqs are the sequences of the messages.
func (p *Publisher) send(ctx context.Context, msgs []*nats.Msg, r relay) (sent int, seqs []uint64, err error) {
	last := r.last
	for _, msg := range msgs {
		ack, err := p.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last))
		if bus.IsConflict(err) && sent == 0 && last > 0 && !r.exists() {
			// What said that the relay is no target has gone from the stream by now.
			ack, err = p.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(0))
		}
		if bus.IsConflict(err) {
			return sent, nil, errors.Join(p.lookAgain(ctx), ErrOvertaken)
		}
		if err != nil {
			return sent, nil, fmt.Errorf("write change: %w", ofTarget(err))
		}
		last, seqs = ack.Sequence, append(seqs, ack.Sequence)
		sent++
	}
	return sent, seqs, p.WaitFor(ctx, last)
}

// ofTarget marks errors that the message itself is the reason of; any other may be gone the next
// time.
func ofTarget(err error) error {
	var api *jetstream.APIError
	if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) || errors.As(err, &api) && api.Code == http.StatusBadRequest {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	return err
}

// lookAgain reads what another replica wrote.
func (p *Publisher) lookAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return p.CatchUp(ctx)
}
