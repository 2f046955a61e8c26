package discovery

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// goneKept is how long the stream says that nothing is wanted any more. forgetAfter is how long
	// this replica knows it after reading it: longer than the stream.
	goneKept    = 11 * time.Hour
	forgetAfter = 12 * time.Hour
	// batchBytes bounds one batch of messages.
	batchBytes = 4 << 20
)

// errOvertaken: another replica was first, and may know more. What is wanted must be worked out
// again.
var errOvertaken = errors.New("another replica was first")

// publisher keeps GRASP_TARGETS in line with what is wanted. It writes only what is different, each
// message on the condition that the last one of its subject is the one that it knows: of several
// replicas one wins, the others look again and find nothing left to do.
type publisher struct {
	bus    *bus.Bus
	log    *slog.Logger
	stream *bus.Follower
	seed   maphash.Seed

	mu     sync.Mutex
	said   map[string]message // by subject
	rounds uint64
	unfit  map[string]bool // targets that cannot be published, and that was logged
}

// message is the last one of a subject.
type message struct {
	seq  uint64
	hash uint64    // of what it says
	gone time.Time // when it was read that nothing is wanted any more; zero: something is
	seen uint64    // the last round that wanted what it says
}

func newPublisher(b *bus.Bus, log *slog.Logger) *publisher {
	p := &publisher{bus: b, log: log, seed: maphash.MakeSeed(), said: map[string]message{}, unfit: map[string]bool{}}
	p.stream = bus.NewFollower(b.JS, bus.Reading{Stream: proto.StreamTargets}, log, bus.Each(func(m bus.Message) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.note(m.Subject, m.Seq, m.Data)
	}))
	return p
}

// note keeps what the last message of a subject says; p.mu is held.
func (p *publisher) note(subject string, seq uint64, data []byte) {
	if seq <= p.said[subject].seq {
		return // it was written here
	}
	m := message{seq: seq, hash: maphash.Bytes(p.seed, data)}
	if len(data) == 0 {
		m.gone = time.Now()
	}
	p.said[subject] = m
}

// publish brings the stream in line with what is wanted, and returns how many messages that took.
// asOf is what had been read before wanted was worked out: what another replica has written since
// is left alone, and the error is [errOvertaken].
func (p *publisher) publish(ctx context.Context, wanted map[string]proto.Target, asOf uint64) (sent int, err error) {
	changes, overtaken := p.changes(wanted, asOf)
	for batch := range batches(changes) {
		if err := p.write(ctx, batch); err != nil {
			return sent, err
		}
		sent += len(batch)
	}
	if overtaken {
		return sent, errOvertaken
	}
	return sent, nil
}

// changes are the messages that lead from what is said to what is wanted.
func (p *publisher) changes(wanted map[string]proto.Target, asOf uint64) (changes []*nats.Msg, overtaken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds++
	change := func(subject string, have message, data []byte) {
		if have.seq > asOf {
			overtaken = true
			return
		}
		msg := &nats.Msg{Subject: subject, Data: data, Header: nats.Header{}}
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, fmt.Sprint(have.seq))
		if len(data) == 0 {
			msg.Header.Set(jetstream.MsgTTLHeader, goneKept.String())
		}
		changes = append(changes, msg)
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		messages, err := wanted[key].Messages(key)
		if err != nil {
			if !p.unfit[key] {
				p.unfit[key] = true
				p.log.Warn("a relay cannot be a target", "relay", key, "error", err)
			}
			continue
		}
		for _, subject := range slices.Sorted(maps.Keys(messages)) {
			have, data := p.said[subject], messages[subject]
			same := have.seq > 0 && have.gone.IsZero() && have.hash == maphash.Bytes(p.seed, data)
			if have.seq > 0 {
				have.seen = p.rounds
				p.said[subject] = have
			}
			if !same {
				change(subject, have, data)
			}
		}
	}
	for subject, have := range p.said {
		switch {
		case have.seen == p.rounds:
		case have.gone.IsZero():
			change(subject, have, nil)
		case time.Since(have.gone) > forgetAfter:
			delete(p.said, subject)
		}
	}
	maps.DeleteFunc(p.unfit, func(key string, _ bool) bool { return !wanted[key].Exists() })
	return changes, overtaken
}

// batches cuts changes into batches of bounded size.
func batches(changes []*nats.Msg) func(yield func([]*nats.Msg) bool) {
	return func(yield func([]*nats.Msg) bool) {
		for begin := 0; begin < len(changes); {
			end, size := begin, 0
			for end < len(changes) && end-begin < bus.MaxBatch && (size < batchBytes || end == begin) {
				size += len(changes[end].Data) + len(changes[end].Subject)
				end++
			}
			if !yield(changes[begin:end]) {
				return
			}
			begin = end
		}
	}
}

// write stores a batch and notes what is said then.
func (p *publisher) write(ctx context.Context, batch []*nats.Msg) error {
	last, err := p.bus.PublishBatch(ctx, batch, nil)
	if bus.IsConflict(err) {
		return errors.Join(p.lookAgain(ctx, batch), errOvertaken)
	}
	if err != nil {
		return fmt.Errorf("write targets: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, msg := range batch {
		p.note(msg.Subject, last-uint64(len(batch)-1-i), msg.Data)
	}
	return nil
}

// lookAgain reads what another replica wrote. Messages that said that nothing is wanted may have
// left the stream by now.
func (p *publisher) lookAgain(ctx context.Context, batch []*nats.Msg) error {
	if err := p.stream.CatchUp(ctx); err != nil {
		return err
	}
	for _, msg := range batch {
		p.mu.Lock()
		have := p.said[msg.Subject]
		p.mu.Unlock()
		if have.gone.IsZero() {
			continue
		}
		_, found, err := bus.Last(ctx, p.bus.JS, proto.StreamTargets, msg.Subject)
		if err != nil {
			return err
		}
		if !found {
			p.mu.Lock()
			delete(p.said, msg.Subject)
			p.mu.Unlock()
		}
	}
	return nil
}
