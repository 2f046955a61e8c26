package bus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// messageQuery asks JetStream for one message, and messageAnswer is its answer.
type messageQuery struct {
	Seq  uint64 `json:"seq,omitempty"`
	Last string `json:"last_by_subj,omitempty"`
	Next string `json:"next_by_subj,omitempty"` // from Seq on
}

type messageAnswer struct {
	Error   *jetstream.APIError `json:"error,omitempty"`
	Message *struct {
		Subject string    `json:"subject"`
		Seq     uint64    `json:"seq"`
		Header  []byte    `json:"hdrs,omitempty"`
		Data    []byte    `json:"data,omitempty"`
		Time    time.Time `json:"time"`
	} `json:"message,omitempty"`
}

// Get returns the message of a stream that has this sequence. found is false if there is none, or
// none any more. The stream's leader answers, who has every message that was acknowledged.
func Get(ctx context.Context, js jetstream.JetStream, stream string, seq uint64) (m Message, found bool, err error) {
	return get(ctx, js, stream, messageQuery{Seq: seq})
}

// Last returns the last message of a subject of a stream, as [Get] does.
func Last(ctx context.Context, js jetstream.JetStream, stream, subject string) (m Message, found bool, err error) {
	return get(ctx, js, stream, messageQuery{Last: subject})
}

// Next returns the first message of a subject of a stream from a sequence on, as [Get] does.
func Next(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64) (m Message, found bool, err error) {
	return get(ctx, js, stream, messageQuery{Seq: from, Next: subject})
}

func get(ctx context.Context, js jetstream.JetStream, stream string, q messageQuery) (m Message, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	data, err := json.Marshal(q)
	if err != nil {
		return m, false, fmt.Errorf("get a message of %s: %w", stream, err)
	}
	reply, err := js.Conn().RequestWithContext(ctx, apiSubject(js, "STREAM.MSG.GET."+stream), data)
	if err != nil {
		return m, false, fmt.Errorf("get a message of %s: %w", stream, err)
	}
	var a messageAnswer
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		return m, false, fmt.Errorf("get a message of %s: %w", stream, err)
	}
	switch {
	case a.Error != nil && a.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return m, false, nil
	case a.Error != nil:
		return m, false, fmt.Errorf("get a message of %s: %w", stream, a.Error)
	case a.Message == nil:
		return m, false, fmt.Errorf("get a message of %s: %w", stream, errors.New("JetStream's answer has no message"))
	}
	m = Message{Seq: a.Message.Seq, Subject: a.Message.Subject, Data: a.Message.Data, Time: a.Message.Time}
	if len(a.Message.Header) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(a.Message.Header); err != nil {
			return m, false, fmt.Errorf("get a message of %s: %w", stream, err)
		}
	}
	return m, true, nil
}

// apiSubject is a subject of JetStream's API as this client reaches it.
func apiSubject(js jetstream.JetStream, verb string) string {
	prefix := cmp.Or(js.Options().APIPrefix, jetstream.DefaultAPIPrefix)
	return strings.TrimSuffix(prefix, ".") + "." + verb
}
