package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/semaphore"

	"tendril.dev/proto"
)

// Bounds of questions and answers.
const (
	maxQuestion = 512 << 10 // bytes of a question
	// mostWaiting is how many questions are taken at once, most of which wait for the log to be
	// applied, and atOnce how many of them are answered. Further ones wait in the subscription, up
	// to mostQueued of them; NATS drops what is more, and who asks asks again.
	mostWaiting = 64
	atOnce      = 4
	mostQueued  = 512
	// lagWait is how long a question waits for the log to be applied up to what it names, before
	// another replica must be asked.
	lagWait = 250 * time.Millisecond
	// answerTime bounds the work on one answer.
	answerTime = 10 * time.Second
)

var (
	errQuestion = errors.New("not a question that can be answered")
	errBehind   = errors.New("this replica has not applied the log that far")
)

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
	service, err := micro.AddService(conn, micro.Config{
		Name: proto.ServiceEvents, Version: "1.0.0", Description: "accepted events, and which ids are accepted",
	})
	if err != nil {
		return fmt.Errorf("serve %s: %w", proto.SubjectQueryKnown, err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{index: x, conn: conn, log: log, taken: semaphore.NewWeighted(mostWaiting), working: semaphore.NewWeighted(atOnce)}
	err = errors.Join(
		s.endpoint(ctx, service, "known", proto.SubjectQueryKnown, func(data []byte) (job, error) {
			var q proto.KnownQuery
			err := json.Unmarshal(data, &q)
			return job{q.Seq, func(context.Context) (any, error) { return x.known(q) }}, err
		}),
		s.endpoint(ctx, service, "events", proto.SubjectQueryEvents, func(data []byte) (job, error) {
			var q proto.EventsQuery
			err := json.Unmarshal(data, &q)
			return job{q.Seq, func(ctx context.Context) (any, error) { return x.page(ctx, q) }}, err
		}))
	if err == nil {
		<-ctx.Done()
	}
	stop()
	if stopErr := service.Stop(); stopErr != nil {
		log.Debug("stopping to answer for accepted events", "error", stopErr)
	}
	s.answering.Wait()
	return err
}

// server is what answers.
type server struct {
	index     *Index
	conn      *nats.Conn
	log       *slog.Logger
	taken     *semaphore.Weighted
	working   *semaphore.Weighted
	answering sync.WaitGroup
}

// job is a question: what must have been applied before it is answered, and how it is.
type job struct {
	seq    uint64
	answer func(context.Context) (any, error)
}

// endpoint answers one kind of question. The micro service reads and writes the request when its
// handler has returned, so the answer is sent without it.
func (s *server) endpoint(ctx context.Context, service micro.Service, name, subject string, read func(data []byte) (job, error)) error {
	handle := func(r micro.Request) {
		reply := r.Reply()
		if len(r.Data()) > maxQuestion {
			s.refuse(reply, fmt.Errorf("%w: larger than %d bytes", errQuestion, maxQuestion))
			return
		}
		j, err := read(r.Data())
		if err != nil {
			s.refuse(reply, fmt.Errorf("%w: %w", errQuestion, err))
			return
		}
		if s.taken.Acquire(ctx, 1) != nil {
			return // the end; who asks asks another
		}
		s.answering.Go(func() {
			defer s.taken.Release(1)
			answer, err := s.work(ctx, j)
			if err != nil {
				s.refuse(reply, err)
				return
			}
			s.send(&nats.Msg{Subject: reply, Data: answer})
		})
	}
	err := service.AddEndpoint(name, micro.HandlerFunc(handle), micro.WithEndpointSubject(subject),
		micro.WithEndpointPendingLimits(mostQueued, 32<<20))
	if err != nil {
		return fmt.Errorf("serve %s: %w", subject, err)
	}
	return nil
}

// work makes an answer once the index is where the question wants it.
func (s *server) work(ctx context.Context, j job) ([]byte, error) {
	lag, cancel := context.WithTimeout(ctx, lagWait)
	defer cancel()
	if err := s.index.DB.WaitFor(lag, j.seq); err != nil {
		return nil, fmt.Errorf("%w: %w", errBehind, err)
	}
	ctx, cancel = context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := s.working.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.working.Release(1)
	answer, err := j.answer(ctx)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // an event is to take the room that it had
	if err := encoder.Encode(answer); err != nil {
		return nil, fmt.Errorf("write an answer: %w", err)
	}
	if most := s.conn.MaxPayload(); int64(text.Len()) > most {
		return nil, fmt.Errorf("%w: the answer has %d bytes, and the bus takes %d", errQuestion, text.Len(), most)
	}
	return text.Bytes(), nil
}

// refuse answers with an error.
func (s *server) refuse(reply string, err error) {
	code := proto.QueryFailed
	switch {
	case errors.Is(err, errBehind):
		code = proto.QueryBehind
	case errors.Is(err, errQuestion):
		code = proto.QueryBad
		s.log.Warn("a question about accepted events was refused", "error", err)
	default:
		s.log.Debug("a question about accepted events was not answered", "error", err)
	}
	s.send(&nats.Msg{Subject: reply, Header: nats.Header{micro.ErrorCodeHeader: {code}, micro.ErrorHeader: {err.Error()}}})
}

func (s *server) send(m *nats.Msg) {
	if err := s.conn.PublishMsg(m); err != nil {
		s.log.Debug("answering a question about accepted events", "error", err)
	}
}
