package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/proto"
)

const (
	// firstAnswer is how long the first process that could give a copy of its index may take to say
	// whether it does, and furtherAnswers how long each further one.
	firstAnswer    = time.Second
	furtherAnswers = 100 * time.Millisecond
	// mostAnswers bounds how many are heard.
	mostAnswers = 200
)

// Copy is a copy of the event index that one process gives another, which starts.
type Copy struct {
	From    string    `json:"from"`
	To      string    `json:"to"`
	Phase   string    `json:"phase"`                   // checkpoint: it is being made; copying: its files are on their way
	Seq     uint64    `json:"up_to_sequence,omitzero"` // of the log
	Bytes   int64     `json:"bytes"`                   // of all its files
	Given   int64     `json:"bytes_given"`
	Percent int       `json:"percent"` // of them
	Since   time.Time `json:"since"`
}

// copyOf is what somebody says that it lends.
func copyOf(l proto.IndexLoan) Copy {
	c := Copy{From: l.From, To: l.For, Phase: "copying", Seq: l.Seq, Bytes: l.Bytes, Given: min(l.Given, l.Bytes), Since: l.Since}
	switch {
	case l.Seq == 0:
		c.Phase = "checkpoint"
	case l.Bytes > 0:
		c.Percent = int(100 * float64(c.Given) / float64(l.Bytes))
	}
	return c
}

// copies asks every process that could give a copy of its index what it gives.
func (r *Reader) copies(ctx context.Context, report *Report) error {
	report.Copies = []Copy{}
	subject, err := micro.ControlSubject(micro.StatsVerb, proto.ServiceIndex, "")
	if err != nil {
		return fmt.Errorf("ask for copies of the index: %w", err)
	}
	inbox := r.bus.Conn.NewInbox()
	sub, err := r.bus.Conn.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("ask for copies of the index: %w", err)
	}
	defer sub.Unsubscribe()
	if err := r.bus.Conn.PublishRequest(subject, inbox, nil); err != nil {
		return fmt.Errorf("ask for copies of the index: %w", err)
	}
	defer func() {
		slices.SortFunc(report.Copies, func(a, b Copy) int { return strings.Compare(a.From, b.From) })
	}()
	wait := firstAnswer
	for range mostAnswers {
		next, cancel := context.WithTimeout(ctx, wait)
		msg, err := sub.NextMsgWithContext(next)
		cancel()
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ask for copies of the index: %w", ctx.Err())
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("ask for copies of the index: %w", err)
		}
		wait = furtherAnswers
		report.Copies = append(report.Copies, copiesIn(msg.Data)...)
	}
	return nil
}

// copiesIn are the copies of which the statistics of a process tell. What cannot be read is left
// out.
func copiesIn(data []byte) (copies []Copy) {
	var stats micro.Stats
	if json.Unmarshal(data, &stats) != nil {
		return nil
	}
	for _, e := range stats.Endpoints {
		var l *proto.IndexLoan
		if e != nil && e.Name == proto.IndexOfferEndpoint && json.Unmarshal(e.Data, &l) == nil && l != nil {
			copies = append(copies, copyOf(*l))
		}
	}
	return copies
}
