package candidates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

func (s *Sender) publish(p *pack) {
	_, err := s.js.PublishMsgAsync(p.message(s.inbox))
	switch {
	case err == nil:
	case !errors.Is(err, nats.ErrMaxPayload):
		s.postpone(p.ref, err)
	case len(p.done) > 1:
		s.split(p) // the bus takes less than when the pack was filled
	default:
		if s.take(p.ref) != nil {
			s.finish(p, nil, fmt.Errorf("send candidate of %d bytes: %w", len(p.data), err)) // it will not get smaller
		}
	}
}

// split sends the events of a pack one by one: as a pack they would not come through.
func (s *Sender) split(p *pack) {
	if s.take(p.ref) == nil {
		return
	}
	lines := bytes.Split(p.data, []byte{'\n'})
	s.mu.Lock()
	select {
	case <-s.ended:
		s.mu.Unlock()
		s.finish(p, nil, ErrEnded)
		return
	default:
	}
	for i, line := range lines {
		one := &pack{key: p.key, road: p.road, from: p.from, lines: [][]byte{line}, done: p.done[i : i+1], size: len(line),
			room: min(overhead+len(line), p.road.room.most)}
		s.seal(one)
		p.road.outbox = append(p.road.outbox, one)
	}
	s.drain(p.road) // or whoever is publishing does, who may be our caller
}

// refused hears that the queue did not take a pack: it is full or lost, or the bus is away. All of
// that passes.
func (s *Sender) refused(_ jetstream.JetStream, msg *nats.Msg, err error) {
	s.log.Debug("the candidate queue pushes back", "error", err)
	s.postpone(msg.Header.Get(proto.HeaderRef), err)
}

// postpone has a pack that was not taken sent again later. A queue that is there may have room
// soon; one that is not there is asked less and less often.
func (s *Sender) postpone(ref string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.waiting[ref]
	if p == nil {
		return
	}
	p.tries-- // it was not heard, so it does not count
	pause := s.busyPause
	if errors.As(why, new(*jetstream.APIError)) {
		p.away = 0
	} else {
		pause = min(s.busyPause<<min(p.away, 10), maxAwayPause)
		p.away++
	}
	p.at = time.Now().Add(pause)
}

// hurry makes everything without a verdict due to be sent again.
func (s *Sender) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.waiting {
		p.at = time.Time{}
	}
}

func (s *Sender) resend(ctx context.Context, now time.Time) {
	var again, lost []*pack
	s.mu.Lock()
	for _, p := range s.waiting {
		switch {
		case now.Before(p.at):
		case p.tries >= s.maxTries:
			lost = append(lost, p)
		default:
			p.at = now.Add(min(s.resendAfter<<min(max(p.tries, 0), 10), max(maxResendAfter, s.resendAfter)))
			p.tries++
			again = append(again, p)
		}
	}
	s.mu.Unlock()
	for _, p := range lost {
		if s.take(p.ref) != nil {
			s.finish(p, nil, ErrNoVerdict)
		}
	}
	for _, p := range again {
		s.mu.Lock()
		waits := s.waiting[p.ref] == p
		s.mu.Unlock()
		// Verdicts may come before it is sent all the same: then it is decided twice, as
		// duplicates, which nobody waits for.
		if waits && ctx.Err() == nil {
			s.publish(p)
		}
	}
}

// judged hears how the events of a pack ended.
func (s *Sender) judged(msg *nats.Msg) {
	vs, err := readVerdicts(msg.Data)
	if err != nil {
		s.log.Error("verdicts cannot be read", "error", err)
		return
	}
	s.mu.Lock()
	p := s.waiting[vs.Ref]
	fits := p != nil && len(vs.Verdicts) == len(p.done)
	s.mu.Unlock()
	if fits && s.take(vs.Ref) != nil {
		s.finish(p, vs.Verdicts, nil)
	}
}

// take ends the waiting for a pack; nil: somebody else has.
func (s *Sender) take(ref string) *pack {
	s.mu.Lock()
	p := s.waiting[ref]
	if p == nil {
		s.mu.Unlock()
		return nil
	}
	delete(s.waiting, ref)
	p.road.under--
	if p.road.eager && p.road.under < busyWith {
		for _, open := range p.road.open {
			s.close(open)
		}
		if len(p.road.outbox) > 0 {
			s.drain(p.road)
			return p
		}
	}
	s.mu.Unlock()
	return p
}

// finish tells everybody how the candidates of a pack ended, and makes room for others.
func (s *Sender) finish(p *pack, verdicts []proto.Verdict, err error) {
	p.road.room.leave(p.from, len(p.done), p.room)
	for i, done := range p.done {
		switch {
		case err != nil:
			done(proto.Verdict{}, err)
		case verdicts[i].RetryAt > 0 && p.road.packs: // synced
			done(verdicts[i], &Later{time.Unix(verdicts[i].RetryAt, 0)})
		default:
			done(verdicts[i], nil)
		}
	}
}
