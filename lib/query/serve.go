package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
)

const (
	// atOnce is how many questions of a subject are answered at once. Further ones wait for their
	// turn, up to mostWaiting of them in mostWaitingBytes; what is more is refused, and the asker asks
	// again.
	atOnce, mostWaiting, mostWaitingBytes = 8, 256, 64 << 20
	// answerTime is for one answer to an asker that does not say how long it waits, and the most that
	// any may say. The waits for a turn and for a sequence of the log are included.
	answerTime = time.Minute
)

// ErrQuestion is the answer to a message that is not the JSON of a question. Nothing was looked up,
// and the same message would be refused again.
var ErrQuestion = errors.New("not a question that can be answered")

// Answerer answers the questions of a subject: the asker gets what it sends, in one message or
// several, or its error.
type Answerer func(ctx context.Context, question []byte, send func(any) error) error

// Asked is an answerer that is told what was asked.
func Asked[Q any](answer func(ctx context.Context, question Q, send func(any) error) error) Answerer {
	return func(ctx context.Context, data []byte, send func(any) error) error {
		var q Q
		if err := json.Unmarshal(data, &q); err != nil {
			return fmt.Errorf("%w: %w", ErrQuestion, err)
		}
		return answer(ctx, q, send)
	}
}

// Answer answers questions on the bus until ctx ends. NATS gives each to one of all processes that
// do.
func Answer(ctx context.Context, conn *nats.Conn, log *slog.Logger, name, description string,
	subjects map[string]Answerer) error {
	service, err := micro.AddService(conn, micro.Config{Name: name, Version: "1.0.0", Description: description})
	if err != nil {
		return fmt.Errorf("serve %s: %w", name, err)
	}
	var desks []*desk
	for subject, answer := range subjects {
		d := &desk{conn: conn, log: log, subject: subject, answer: answer, turns: make(chan struct{}, atOnce)}
		desks = append(desks, d)
		err = errors.Join(err, service.AddEndpoint(subject[strings.LastIndex(subject, ".")+1:],
			micro.HandlerFunc(func(r micro.Request) { d.receive(ctx, r) }), micro.WithEndpointSubject(subject)))
	}
	if err == nil {
		<-ctx.Done()
	}
	if stopErr := service.Stop(); stopErr != nil {
		log.Debug("stopping to answer questions", "service", name, "error", stopErr)
	}
	for _, d := range desks {
		d.close()
	}
	return err
}

// desk takes the questions of one subject.
type desk struct {
	conn    *nats.Conn
	log     *slog.Logger
	subject string
	answer  Answerer
	turns   chan struct{} // full while as many questions are answered as may be

	mu      sync.Mutex
	closed  bool
	waiting int // questions that were received and not answered yet
	bytes   int // of these questions
	working sync.WaitGroup
}

// receive answers a question in a goroutine of its own, or refuses it if too many wait. The micro
// service reads and writes the request when receive has returned, so the answer is sent without it.
func (d *desk) receive(ctx context.Context, r micro.Request) {
	q := questioned{data: r.Data(), reply: r.Reply(), time: answerTime}
	if d, err := time.ParseDuration(r.Headers().Get(proto.HeaderTimeout)); err == nil {
		q.time = min(d, answerTime)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed: // subscriptions deliver for a moment after Stop: the asker asks another replica
	case d.waiting >= atOnce+mostWaiting || d.bytes+len(q.data) > mostWaitingBytes:
		d.refuse(q, errBusy)
	default:
		d.waiting, d.bytes = d.waiting+1, d.bytes+len(q.data)
		d.working.Go(func() {
			d.handle(ctx, q)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.waiting, d.bytes = d.waiting-1, d.bytes-len(q.data)
		})
	}
}

// questioned is a question as it was received.
type questioned struct {
	data  []byte
	reply string
	time  time.Duration // how long the asker waits
}

var errBusy = errors.New("too many questions wait here")

// handle waits for a turn and answers. Until then it tells the asker every second that this replica
// lives.
func (d *desk) handle(ctx context.Context, q questioned) {
	ctx, cancel := context.WithTimeout(ctx, q.time)
	defer cancel()
	signs := make(chan struct{})
	var signing sync.WaitGroup
	signing.Go(func() {
		tick := time.NewTicker(signEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = d.conn.PublishMsg(&nats.Msg{Subject: q.reply, Header: nats.Header{proto.HeaderWorking: {"1"}}})
			case <-signs:
				return
			}
		}
	})
	err := d.inTurn(ctx, q)
	close(signs)
	signing.Wait()
	if err != nil {
		d.refuse(q, err)
	}
}

func (d *desk) inTurn(ctx context.Context, q questioned) error {
	select {
	case d.turns <- struct{}{}:
		defer func() { <-d.turns }()
	case <-ctx.Done():
		return fmt.Errorf("wait for a turn: %w", ctx.Err())
	}
	return d.answer(ctx, q.data, func(part any) error { return send(d.conn, q.reply, part) })
}

func (d *desk) refuse(q questioned, err error) {
	d.log.Debug("a question was refused", "subject", d.subject, "error", err)
	header := nats.Header{micro.ErrorCodeHeader: {codeOf(err)}, micro.ErrorHeader: {err.Error()}}
	_ = d.conn.PublishMsg(&nats.Msg{Subject: q.reply, Header: header})
}

// close waits until every question that was received is answered, and takes no further one.
func (d *desk) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.working.Wait()
}

func send(conn *nats.Conn, to string, part any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // an event takes the room that it had
	if err := encoder.Encode(part); err != nil {
		return fmt.Errorf("write an answer: %w", err)
	}
	err := conn.Publish(to, text.Bytes())
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: the answer has %d bytes, and the bus takes %d", ErrQuestion, text.Len(), conn.MaxPayload())
	}
	return err
}

// codeOf tells an error to the asker.
func codeOf(err error) string {
	switch {
	case errors.Is(err, errBehind):
		return proto.QueryBehind
	case errors.Is(err, ErrQuestion), errors.Is(err, reconcile.ErrMessage):
		return proto.QueryBad
	case errors.Is(err, eventdb.ErrTooMany):
		return proto.QueryTooMany
	}
	return proto.QueryFailed
}
