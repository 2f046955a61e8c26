package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
)

const (
	// atOnce is how many questions of a subject are answered at once. Further ones wait in the
	// subscription, up to mostQueued of them; NATS drops what is more, and the asker asks again.
	atOnce, mostQueued, mostQueuedBytes = 8, 256, 64 << 20
	// answerTime is for one answer, the wait for a sequence of the log included.
	answerTime = 15 * time.Second
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
func Answer(ctx context.Context, conn *nats.Conn, log *slog.Logger, name, description string, subjects map[string]Answerer) error {
	service, err := micro.AddService(conn, micro.Config{Name: name, Version: "1.0.0", Description: description})
	if err != nil {
		return fmt.Errorf("serve %s: %w", name, err)
	}
	var all []chan struct{}
	for subject, answer := range subjects {
		places := make(chan struct{}, atOnce)
		all = append(all, places)
		// The micro service reads and writes the request when its handler has returned, so the answer
		// is sent without it.
		handle := func(r micro.Request) {
			question, reply := r.Data(), r.Reply()
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return
			}
			go func() {
				defer func() { <-places }()
				ctx, cancel := context.WithTimeout(ctx, answerTime)
				defer cancel()
				err := answer(ctx, question, func(part any) error { return send(conn, reply, part) })
				if err != nil {
					log.Debug("a question was refused", "subject", subject, "error", err)
					header := nats.Header{micro.ErrorCodeHeader: {codeOf(err)}, micro.ErrorHeader: {err.Error()}}
					_ = conn.PublishMsg(&nats.Msg{Subject: reply, Header: header})
				}
			}()
		}
		err = errors.Join(err, service.AddEndpoint(subject[strings.LastIndex(subject, ".")+1:], micro.HandlerFunc(handle),
			micro.WithEndpointSubject(subject), micro.WithEndpointPendingLimits(mostQueued, mostQueuedBytes)))
	}
	if err == nil {
		<-ctx.Done()
	}
	if stopErr := service.Stop(); stopErr != nil {
		log.Debug("stopping to answer questions", "service", name, "error", stopErr)
	}
	// Subscriptions deliver for a moment after Stop. With all places taken, no further answer begins.
	for _, places := range all {
		for range atOnce {
			places <- struct{}{}
		}
	}
	return err
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
