package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/proto"
)

const (
	// signEvery is how often a replica tells an asker that it works on the question, and silence how
	// long a replica that tells nothing is believed to live. So a long question is not taken for a
	// dead replica: asked again, it would be answered several times at once.
	signEvery = time.Second
	silence   = 3 * time.Second
)

// errSilent is the end of a question of which nothing was heard: the replica that had it is gone.
var errSilent = fmt.Errorf("no replica told anything about the question for %s", silence)

// request asks a micro service once. The question says how long there is for the answer, so the
// replica stops when its asker waits no longer. sign is called whenever the replica tells that it
// works on the question. Optional.
func request(ctx context.Context, conn *nats.Conn, subject string, question, answer any, sign func()) error {
	m := &nats.Msg{Subject: subject, Reply: conn.NewInbox(), Header: nats.Header{}}
	var err error
	if m.Data, err = json.Marshal(question); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		m.Header.Set(proto.HeaderTimeout, time.Until(deadline).String())
	}
	replies, err := conn.SubscribeSync(m.Reply)
	if err != nil {
		return fmt.Errorf("subscribe to the answer: %w", err)
	}
	defer replies.Unsubscribe()
	err = conn.PublishMsg(m)
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: the question has %d bytes, and the bus takes %d", ErrRefused, len(m.Data), conn.MaxPayload())
	}
	for err == nil {
		var reply *nats.Msg
		if reply, err = nextReply(ctx, replies); err != nil {
			break
		}
		if reply.Header.Get(proto.HeaderWorking) == "" {
			return readReply(reply, answer)
		}
		if sign != nil {
			sign()
		}
	}
	return fmt.Errorf("ask %s: %w", subject, err)
}

// nextReply waits for what a replica tells next.
func nextReply(ctx context.Context, replies *nats.Subscription) (*nats.Msg, error) {
	brief, cancel := context.WithTimeoutCause(ctx, silence, errSilent)
	defer cancel()
	reply, err := replies.NextMsgWithContext(brief)
	if err != nil && brief.Err() != nil {
		return nil, context.Cause(brief)
	}
	return reply, err
}

// readReply reads the answer of a replica, or its error.
func readReply(reply *nats.Msg, answer any) error {
	why := errors.New(reply.Header.Get(micro.ErrorHeader))
	switch code := reply.Header.Get(micro.ErrorCodeHeader); {
	case len(reply.Data) == 0 && reply.Header.Get("Status") == noReplica:
		return nats.ErrNoResponders
	case code == "":
		return json.Unmarshal(reply.Data, answer)
	case code == proto.QueryBad:
		return fmt.Errorf("%w: %w", ErrRefused, why)
	case code == proto.QueryBehind:
		return fmt.Errorf("%w: %w", errBehind, why)
	case code == proto.QueryTooMany:
		return fmt.Errorf("%w: %w", ErrTooMany, why)
	}
	return why
}

// noReplica is the status by which NATS says that no replica hears a question.
const noReplica = "503"
