package candidates

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"tendril.dev/lib/backoff"
	"tendril.dev/proto"
)

// key is what the candidates of a pack have in common: all that its headers say.
type key struct {
	lane   proto.Lane
	source proto.Source
	relay  string
	client string
	action proto.Action
	reason string
}

// pack is several candidates in one message.
type pack struct {
	key
	of    *lane
	lines [][]byte // until it is sent
	size  int      // bytes of its message
	trace []string // one for each line, up to the last that has one
	done  []func(proto.Verdict, error)

	ref   string
	data  []byte
	at    time.Time // when to send it again
	sent  int       // how many times it was sent without a verdict, since the queue refused it last
	until time.Time // when to give it up
}

// messageRoom is what is left for headers and the client's own framing below the largest message.
const messageRoom = 4 << 10

// mostBytes is how large a pack may be on this bus.
func (s *Sender) mostBytes() int {
	if most := int(s.conn.MaxPayload()) - messageRoom; most > 0 {
		return min(proto.MaxPackBytes, most)
	}
	return proto.MaxPackBytes
}

// addToPack puts a candidate into a pack, and sends the pack if it is full or ingest has little to
// do. The caller holds the lock.
func (s *Sender) addToPack(l *lane, k key, line []byte, trace string, done func(proto.Verdict, error)) {
	p := l.open[k]
	if p != nil && p.size+len(line) > s.mostBytes() {
		s.send(p)
		p = nil
	}
	fresh := p == nil
	if fresh {
		p = &pack{key: k, of: l}
		l.open[k] = p
	}
	if trace != "" {
		p.trace = append(append(p.trace, make([]string, len(p.lines)-len(p.trace))...), trace)
	}
	p.lines = append(p.lines, line)
	p.done = append(p.done, done)
	p.size += len(line) + 1 + len(trace) // and a line break; headers count too
	switch {
	case len(p.lines) == proto.MaxPackEvents || p.size >= s.mostBytes() || l.under < l.enough:
		s.send(p)
	case fresh:
		time.AfterFunc(l.fillFor, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l.open[k] == p {
				s.send(p)
			}
		})
	}
}

// send sends a pack for the first time. From here on it waits for verdicts. The caller holds the
// lock, so packs with the same key leave in their order.
func (s *Sender) send(p *pack) {
	delete(p.of.open, p.key)
	p.of.under++
	p.data, p.lines = proto.JoinPack(p.lines), nil
	p.ref = nuid.Next() // a verdict of another's pack, that names our inbox, must not end it
	p.sent, p.until = 1, time.Now().Add(s.giveUpAfter)
	s.waiting[p.ref] = p
	s.publish(p)
}

// publish sends a pack. The caller holds the lock.
func (s *Sender) publish(p *pack) {
	p.at = time.Now().Add(backoff.After(p.sent, s.resendAfter, max(maxResendAfter, s.resendAfter)))
	if !s.conn.IsConnected() {
		return // all are sent when it is
	}
	h := make(nats.Header, 8)
	for name, value := range map[string]string{
		proto.HeaderSource: string(p.source), proto.HeaderRelay: p.relay, proto.HeaderClient: p.client,
		proto.HeaderAction: string(p.action), proto.HeaderReason: p.reason, proto.HeaderReply: s.inbox, proto.HeaderRef: p.ref,
		proto.HeaderTraceParent: strings.Join(p.trace, ","),
	} {
		if value != "" {
			h[name] = []string{value}
		}
	}
	_, err := s.js.PublishMsgAsync(&nats.Msg{Subject: p.lane.Subject(), Data: p.data, Header: h})
	switch {
	case errors.Is(err, nats.ErrMaxPayload): // it will not get smaller
		s.take(p.ref)
		go p.finish(nil, fmt.Errorf("send candidates of %d bytes: %w", len(p.data), err))
	case err != nil:
		s.log.Debug("candidates cannot be sent", "error", err)
		p.at = time.Now().Add(s.refusedPause)
	}
}

// refused hears that the queue did not take a pack: it is full or lost, or the bus is away. All of
// that passes. JetStream may hold its own lock while it calls this.
func (s *Sender) refused(_ jetstream.JetStream, msg *nats.Msg, err error) {
	s.log.Debug("the candidate queue pushes back", "error", err)
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if p := s.waiting[msg.Header.Get(proto.HeaderRef)]; p != nil {
			p.sent, p.at = 1, time.Now().Add(s.refusedPause)
		}
	}()
}

// resend sends again what has had no verdict for too long, or all that has none.
func (s *Sender) resend(now time.Time, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref, p := range s.waiting {
		switch {
		case now.After(p.until):
			s.take(ref)
			go p.finish(nil, ErrNoVerdict)
		case all || !now.Before(p.at):
			p.sent++
			s.publish(p)
		}
	}
}

// onVerdicts hears how the events of a pack ended.
func (s *Sender) onVerdicts(msg *nats.Msg) {
	var vs proto.Verdicts
	if err := json.Unmarshal(msg.Data, &vs); err != nil {
		s.log.Error("verdicts cannot be read", "error", err)
		return
	}
	s.mu.Lock()
	p := s.waiting[vs.Ref]
	ends := p != nil && len(vs.Verdicts) == len(p.done)
	if ends {
		s.take(vs.Ref)
	}
	s.mu.Unlock()
	if ends {
		p.finish(vs.Verdicts, nil)
	}
}

// take ends the waiting for a pack. When ingest has little left to do, it gets what has gathered.
// The caller holds the lock.
func (s *Sender) take(ref string) {
	l := s.waiting[ref].of
	delete(s.waiting, ref)
	if l.under--; l.under < l.enough {
		for _, p := range l.open {
			s.send(p)
		}
	}
}

// finish tells how the candidates of a pack ended. The caller does not hold the lock.
func (p *pack) finish(verdicts []proto.Verdict, err error) {
	synced := p.lane != proto.LaneUser && p.lane != proto.LaneRelease
	for i, done := range p.done {
		switch {
		case err != nil:
			done(proto.Verdict{}, err)
		case synced && verdicts[i].RetryAt > 0:
			done(verdicts[i], &Later{time.Unix(verdicts[i].RetryAt, 0)})
		default:
			done(verdicts[i], nil)
		}
	}
}
