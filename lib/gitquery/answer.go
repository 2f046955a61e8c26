package gitquery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// atOnce is how many questions of one verb are answered at once, and maxWaiting how many wait for
	// that or are answered. Further ones are refused with [ErrBusy].
	atOnce, maxWaiting = 4, 256
	// maxTimeout bounds the deadline of an asker.
	maxTimeout = 5 * time.Minute
)

// Answers are what a worker says to each question. An error is told to the asker: ErrMoved only if
// nothing was done.
type Answers struct {
	List       func(ctx context.Context, shard int, after string) (proto.RepoListAnswer, error)
	Show       func(context.Context, nostr.RepoRef) (proto.RepoStatus, error)
	References func(context.Context, nostr.RepoRef, proto.RepoReferencesQuestion) (proto.RepoReferencesAnswer, error)
	Folder     func(context.Context, nostr.RepoRef, proto.RepoFolderQuestion) (proto.RepoFolderAnswer, error)
	Log        func(context.Context, nostr.RepoRef, proto.RepoLogQuestion) (proto.RepoLogAnswer, error)
	Ages       func(context.Context, nostr.RepoRef, proto.RepoAgesQuestion) (proto.RepoAgesAnswer, error)
	Waits      func(context.Context, nostr.RepoRef) (proto.RepoWaitsAnswer, error)
	Restore    func(context.Context, nostr.RepoRef) (proto.RepoStatus, error)
	Remove     func(context.Context, nostr.RepoRef) (proto.RepoStatus, error)
}

// Server answers for one worker.
type Server struct {
	conn    *nats.Conn
	log     *slog.Logger
	answers Answers
	waiting chan struct{}
	places  map[proto.RepoVerb]chan struct{}
}

// NewServer makes a server that answers nothing yet.
func NewServer(conn *nats.Conn, log *slog.Logger, answers Answers) *Server {
	s := &Server{
		conn: conn, log: log, answers: answers,
		waiting: make(chan struct{}, maxWaiting), places: map[proto.RepoVerb]chan struct{}{},
	}
	for _, verb := range proto.RepoVerbs() {
		s.places[verb] = make(chan struct{}, atOnce)
	}
	return s
}

// Serve answers questions about a shard until stop is called. What is answered then goes on until
// ctx ends.
func (s *Server) Serve(ctx context.Context, shard int) (stop func(), err error) {
	sub, err := s.conn.Subscribe(proto.RepoSubject(proto.ShardName(shard), "*"),
		func(m *nats.Msg) { s.take(ctx, shard, m) })
	if err != nil {
		return nil, fmt.Errorf("listen to questions about shard %d: %w", shard, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // it fails only where the connection has ended
}

// take lets a question wait for its turn, and answers it. The subscription is free for the next one
// at once.
func (s *Server) take(ctx context.Context, shard int, m *nats.Msg) {
	reply := m.Reply
	if reply == "" {
		return // there is no address for an answer
	}
	verb, err := proto.ParseRepoSubject(m.Subject)
	if err != nil {
		s.refuse(reply, fmt.Errorf("%w: %w", ErrQuestion, err))
		return
	}
	select {
	case s.waiting <- struct{}{}:
	default:
		s.refuse(reply, ErrBusy)
		return
	}
	go func() {
		defer func() { <-s.waiting }()
		ctx, cancel := context.WithTimeout(ctx, timeout(m.Header))
		defer cancel()
		select {
		case s.places[verb] <- struct{}{}:
		case <-ctx.Done():
			s.refuse(reply, ErrBusy)
			return
		}
		defer func() { <-s.places[verb] }()
		answer, err := s.answer(ctx, verb, shard, m.Data)
		if err == nil {
			err = s.send(reply, answer)
		}
		if err != nil {
			s.refuse(reply, err)
		}
	}()
}

// timeout is how long the asker waits.
func timeout(h nats.Header) time.Duration {
	d, err := time.ParseDuration(h.Get(proto.HeaderTimeout))
	if err != nil || d <= 0 || d > maxTimeout {
		return maxTimeout
	}
	return d
}

// answer answers a question with the value that its asker is to get.
func (s *Server) answer(ctx context.Context, verb proto.RepoVerb, shard int, data []byte) (any, error) {
	if verb == proto.RepoList {
		q, err := read[proto.RepoListQuestion](data)
		if err != nil {
			return nil, err
		}
		return s.answers.List(ctx, shard, q.After)
	}
	q, err := read[proto.RepoQuestion](data) // the others have this and more
	if err != nil {
		return nil, err
	}
	ref, err := nostr.ParseRepoRef(q.Ref)
	if err == nil && proto.ShardOf(ref.Identifier) != shard {
		err = errors.New("the repository is of another shard")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrQuestion, err)
	}
	switch verb {
	case proto.RepoReferences:
		return about(ctx, ref, data, s.answers.References)
	case proto.RepoFolder:
		return about(ctx, ref, data, s.answers.Folder)
	case proto.RepoLog:
		return about(ctx, ref, data, s.answers.Log)
	case proto.RepoAges:
		return about(ctx, ref, data, s.answers.Ages)
	case proto.RepoShow:
		return s.answers.Show(ctx, ref)
	case proto.RepoWaits:
		return s.answers.Waits(ctx, ref)
	case proto.RepoRestore:
		return s.answers.Restore(ctx, ref)
	case proto.RepoRemove:
		return s.answers.Remove(ctx, ref)
	}
	return nil, ErrQuestion
}

func read[Q any](data []byte) (question Q, err error) {
	if err := json.Unmarshal(data, &question); err != nil {
		return question, fmt.Errorf("%w: %w", ErrQuestion, err)
	}
	return question, nil
}

// about answers a question that says more than which repository it is about.
func about[Q, A any](ctx context.Context, ref nostr.RepoRef, data []byte,
	answer func(context.Context, nostr.RepoRef, Q) (A, error)) (any, error) {
	question, err := read[Q](data)
	if err != nil {
		return nil, err
	}
	return answer(ctx, ref, question)
}

func (s *Server) send(reply string, answer any) error {
	data, err := json.Marshal(answer)
	if err == nil {
		err = s.conn.Publish(reply, data)
	}
	if err != nil {
		return fmt.Errorf("send an answer: %w", err)
	}
	return nil
}

// refuse tells an error to the asker.
func (s *Server) refuse(reply string, err error) {
	code := proto.QueryFailed
	switch {
	case errors.Is(err, ErrQuestion):
		code = proto.QueryBad
	case errors.Is(err, ErrMoved):
		code = proto.RepoMoved
	case errors.Is(err, ErrBusy):
		code = proto.RepoBusy
	}
	header := nats.Header{micro.ErrorCodeHeader: {code}, micro.ErrorHeader: {err.Error()}}
	if err := s.conn.PublishMsg(&nats.Msg{Subject: reply, Header: header}); err != nil {
		s.log.Warn("an asker could not be told of a failure", "error", err)
	}
}

// Page cuts the items behind the one that key names off at the size of a page. Items must be in the
// order of their keys.
func Page[T any](items []T, key func(T) string, after string) (page []T, more bool) {
	size := 0
	for _, item := range items {
		if key(item) <= after {
			continue
		}
		data, _ := json.Marshal(item) // plain structures
		if size += len(data); len(page) > 0 && size > proto.MaxRepoAnswer {
			return page, true
		}
		page = append(page, item)
	}
	return page, false
}
