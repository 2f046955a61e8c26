package query

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Index answers from the index of this process.
type Index struct {
	DB *eventdb.DB
	js jetstream.JetStream
}

// NewIndex is for an index that follows the log of that bus.
func NewIndex(db *eventdb.DB, b *bus.Bus) *Index { return &Index{DB: db, js: b.JS} }

// Seq implements [Source].
func (x *Index) Seq() uint64 { return x.DB.Seq() }

// CatchUp implements [Source].
func (x *Index) CatchUp(ctx context.Context) error {
	last, err := bus.LastSeq(ctx, x.js, proto.StreamEvents)
	if err != nil {
		return err
	}
	return x.DB.WaitFor(ctx, last)
}

// Reached implements [Source].
func (x *Index) Reached(ctx context.Context, seq uint64) error { return x.DB.WaitFor(ctx, seq) }

// Has implements [Source].
func (x *Index) Has(_ context.Context, ids [][32]byte) ([]bool, error) { return x.DB.HasEach(ids) }

// Query implements [Source].
func (x *Index) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		view := x.DB.View()
		defer view.Close()
		view.Query(ctx, f)(yield)
	}
}

// IDs implements [Source].
func (x *Index) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[[32]byte, error] {
	return func(yield func([32]byte, error) bool) {
		view := x.DB.View()
		defer view.Close()
		view.IDs(ctx, f)(func(e eventdb.Entry, err error) bool { return yield(e.ID, err) })
	}
}

// Bounds of questions and answers.
const (
	maxQuestion = 512 << 10 // bytes of a question
	// atOnce is how many questions are answered at once. Further ones wait in the subscription, up
	// to mostQueued of them; NATS drops what is more, and the asker asks again.
	atOnce     = 16
	mostQueued = 512
	// lagWait is how long a question waits for the log to be applied up to what it names, before
	// another replica must be asked.
	lagWait = 250 * time.Millisecond
	// answerTime bounds the work on one answer.
	answerTime = 10 * time.Second
)

var errQuestion = errors.New("not a question that can be answered")

// Serve answers questions on the bus until ctx ends, from when the index has read what the log had
// at the beginning. NATS gives each question to one of all processes that serve.
func Serve(ctx context.Context, x *Index, conn *nats.Conn, log *slog.Logger) error {
	for err := x.CatchUp(ctx); err != nil; err = x.CatchUp(ctx) {
		log.Debug("the index is not ready to be asked", "error", err)
		select {
		case <-time.After(lagWait):
		case <-ctx.Done():
			return nil
		}
	}
	places := make(chan struct{}, atOnce)
	// The micro service reads and writes the request when its handler has returned, so the answer is
	// sent without it.
	handle := func(r micro.Request) {
		question, answer := r.Data(), &nats.Msg{Subject: r.Reply()}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		go func() {
			defer func() { <-places }()
			var err error
			if answer.Data, err = x.answer(ctx, question, conn.MaxPayload()); err != nil {
				answer.Header = nats.Header{micro.ErrorCodeHeader: {codeOf(err)}, micro.ErrorHeader: {err.Error()}}
				log.Debug("a question about accepted events was refused", "error", err)
			}
			if err := conn.PublishMsg(answer); err != nil {
				log.Debug("answering a question about accepted events", "error", err)
			}
		}()
	}
	service, err := micro.AddService(conn, micro.Config{Name: proto.ServiceEvents, Version: "1.0.0", Description: "accepted events"})
	if err == nil {
		err = service.AddEndpoint("events", micro.HandlerFunc(handle), micro.WithEndpointSubject(proto.SubjectQueryEvents),
			micro.WithEndpointPendingLimits(mostQueued, 32<<20))
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", proto.SubjectQueryEvents, err)
	}
	<-ctx.Done()
	if err := service.Stop(); err != nil {
		log.Debug("stopping to answer for accepted events", "error", err)
	}
	for range atOnce { // until every answer is done
		places <- struct{}{}
	}
	return nil
}

// codeOf tells an error to the asker.
func codeOf(err error) string {
	switch {
	case errors.Is(err, errBehind):
		return proto.QueryBehind
	case errors.Is(err, errQuestion):
		return proto.QueryBad
	}
	return proto.QueryFailed
}

// answer makes the answer to a question once the index is where the question wants it.
func (x *Index) answer(ctx context.Context, question []byte, most int64) ([]byte, error) {
	var q proto.EventsQuery
	if len(question) > maxQuestion {
		return nil, fmt.Errorf("%w: larger than %d bytes", errQuestion, maxQuestion)
	}
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, fmt.Errorf("%w: %w", errQuestion, err)
	}
	lag, cancel := context.WithTimeout(ctx, lagWait)
	defer cancel()
	if err := x.DB.WaitFor(lag, q.Seq); err != nil {
		return nil, fmt.Errorf("%w: %w", errBehind, err)
	}
	ctx, stop := context.WithTimeout(ctx, answerTime)
	defer stop()
	a, err := x.page(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // an event takes the room that it had
	if err := encoder.Encode(a); err != nil {
		return nil, fmt.Errorf("write an answer: %w", err)
	}
	if int64(text.Len()) > most {
		return nil, fmt.Errorf("%w: the answer has %d bytes, and the bus takes %d", errQuestion, text.Len(), most)
	}
	return text.Bytes(), nil
}

// page makes one page of the answer to a question.
func (x *Index) page(ctx context.Context, q proto.EventsQuery) (a proto.EventsAnswer, err error) {
	view := x.DB.View()
	defer view.Close()
	a.Seq = view.Seq()
	f, limit := q.Filter, q.Filter.Limit
	if q.IDsOnly && f.IDs != nil {
		view = view.All() // what is here need not be fetched, though it is not served
	}
	if f.LimitZero || limit < 0 {
		return a, nil
	}
	f.Limit = 0 // it counts what comes after the place
	if q.After != nil && (f.Until == nil || *f.Until > q.After.CreatedAt) {
		f.Until = &q.After.CreatedAt
	}
	var last proto.Place
	count, size := 0, 0
	for m, err := range matches(ctx, view, f, q.IDsOnly) {
		if err != nil {
			return a, err
		}
		at := proto.Place{CreatedAt: m.CreatedAt, ID: hex.EncodeToString(m.ID[:])}
		if q.After != nil && at.CreatedAt == q.After.CreatedAt && at.ID <= q.After.ID {
			continue
		}
		if size += len(m.JSON); count > 0 && size > proto.MaxQueriedBytes || count == proto.MaxQueriedIDs {
			a.After = &last
			return a, nil
		}
		if q.IDsOnly {
			a.IDs = append(a.IDs, m.ID[:]...)
		} else {
			a.Events = append(a.Events, bytes.Clone(m.JSON))
		}
		last = at
		if count++; count == limit {
			break
		}
	}
	return a, nil
}

// matches returns the answers to a filter, with their JSON if more than ids are wanted.
func matches(ctx context.Context, view *eventdb.View, f nostr.Filter, idsOnly bool) iter.Seq2[eventdb.Raw, error] {
	if !idsOnly {
		return view.QueryRaw(ctx, f)
	}
	return func(yield func(eventdb.Raw, error) bool) {
		view.IDs(ctx, f)(func(e eventdb.Entry, err error) bool { return yield(eventdb.Raw{Entry: e}, err) })
	}
}
