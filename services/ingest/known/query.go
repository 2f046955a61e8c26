// Package known says which events need not be fetched: those that are accepted or held, and those
// that were rejected within the last days. It answers the micro services grasp.query.ids, which
// lists them, and grasp.query.reconcile, which finds out step by step which of a relay's are not
// among them.
package known

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
	"tendril.dev/proto"
)

// Bounds of queries and answers.
const (
	maxRequest = 512 << 10        // bytes of a filter
	chunkSize  = 2000             // entries of a message, about 200 KiB
	maxEntries = 10_000_000       // of an answer
	maxTime    = 60 * time.Second // for an answer
	atOnce     = 4                // answers; further queries wait in the subscription
	maxWaiting = 256              // queries that wait there; NATS drops what is more
	flushEvery = 16               // chunks, so that no more than a few MiB wait in this process
)

var errTooMany = fmt.Errorf("the filter matches more than %d events", maxEntries)

// Known is where ids come from.
type Known struct {
	Index    *eventdb.DB
	Held     *held.Set
	Rejected *Rejected
}

// Serve answers queries until ctx ends. Every replica does; NATS gives each query to one of them.
//
// A query is a nostr filter as JSON; its limit is not looked at, for reconciliation needs all. The
// answer is a stream of messages, each a JSON array of [proto.KnownID] in no particular order, each
// event once; an empty array is the end. A message with the micro service protocol's error headers
// is the end too, of an answer that is not whole.
func Serve(ctx context.Context, conn *nats.Conn, known Known, log *slog.Logger) error {
	service, err := micro.AddService(conn, micro.Config{
		Name: proto.ServiceQuery, Version: "1.0.0",
		Description: "ids of events that need not be fetched: accepted, held, rejected",
	})
	if err != nil {
		return fmt.Errorf("serve %s: %w", proto.SubjectQueryIDs, err)
	}
	s := &server{Known: known, conn: conn, log: log, memory: &memory{byFilter: map[string]gathered{}}}
	err = errors.Join(
		s.endpoint(ctx, service, "ids", proto.SubjectQueryIDs, s.list),
		s.endpoint(ctx, service, "reconcile", proto.SubjectQueryReconcile, s.step))
	if err == nil {
		<-ctx.Done()
	}
	if stopErr := service.Stop(); stopErr != nil {
		log.Debug("stopping the service of ids", "error", stopErr)
	}
	s.answering.Wait()
	return err
}

type server struct {
	Known
	conn      *nats.Conn
	log       *slog.Logger
	memory    *memory
	answering sync.WaitGroup
}

// endpoint answers one kind of query. The micro service reads and writes the request when its
// handler has returned, so the request itself is only answered in here, if it is refused. Any other
// answer goes to its reply subject, by the job that read makes of it.
func (s *server) endpoint(
	ctx context.Context, service micro.Service, name, subject string,
	read func(data []byte, reply string) (job func(context.Context) error, err error),
) error {
	room := make(chan struct{}, atOnce)
	handle := func(r micro.Request) {
		reply := r.Reply()
		job, err := read(r.Data(), reply)
		if err != nil {
			s.log.Warn("a query was refused", "subject", subject, "error", err)
			if err := r.Error(proto.QueryBad, err.Error(), nil); err != nil {
				s.log.Debug("an error could not be told to the asker", "error", err)
			}
			return
		}
		room <- struct{}{}
		s.answering.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, maxTime)
			defer cancel()
			if err := job(ctx); err != nil {
				s.log.Warn("a query was not answered whole", "subject", subject, "error", err)
				header := nats.Header{micro.ErrorCodeHeader: {codeOf(err)}, micro.ErrorHeader: {err.Error()}}
				if err := s.conn.PublishMsg(&nats.Msg{Subject: reply, Header: header}); err != nil {
					s.log.Debug("an error could not be told to the asker", "error", err)
				}
			}
		})
	}
	err := service.AddEndpoint(name, micro.HandlerFunc(handle), micro.WithEndpointSubject(subject),
		micro.WithEndpointPendingLimits(maxWaiting, maxWaiting*maxRequest))
	if err != nil {
		return fmt.Errorf("serve %s: %w", subject, err)
	}
	return nil
}

func codeOf(err error) string {
	switch {
	case errors.Is(err, reconcile.ErrMessage):
		return proto.QueryBad
	case errors.Is(err, eventdb.ErrTooMany):
		return proto.QueryTooMany
	}
	return proto.QueryFailed
}

var errQuery = errors.New("not a filter")

// list reads the filter of a query. Its limit is dropped.
func (s *server) list(data []byte, reply string) (job func(context.Context) error, err error) {
	var f nostr.Filter
	if len(data) > maxRequest {
		return nil, fmt.Errorf("%w: larger than %d bytes", errQuery, maxRequest)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", errQuery, err)
	}
	f.Limit, f.LimitZero = 0, false
	return func(ctx context.Context) error { return s.answer(ctx, s.conn, reply, f) }, nil
}

func (k Known) answer(ctx context.Context, conn *nats.Conn, reply string, f nostr.Filter) error {
	chunk := make([]proto.KnownID, 0, chunkSize)
	total, chunks := 0, 0
	send := func() error {
		data, err := json.Marshal(chunk)
		if err != nil {
			return fmt.Errorf("write ids: %w", err)
		}
		if err := conn.Publish(reply, data); err != nil {
			return fmt.Errorf("send ids: %w", err)
		}
		chunk = chunk[:0]
		if chunks++; chunks%flushEvery == 0 {
			return conn.FlushWithContext(ctx)
		}
		return nil
	}
	err := k.each(ctx, f, func(id string, at nostr.Timestamp) error {
		if total++; total > maxEntries {
			return errTooMany
		}
		if chunk = append(chunk, proto.KnownID{ID: id, CreatedAt: at}); len(chunk) == chunkSize {
			return send()
		}
		return nil
	})
	if err == nil && len(chunk) > 0 {
		err = send()
	}
	if err != nil {
		return err
	}
	return send() // empty: the end
}

// each gives every id once: accepted events first, then the others.
func (k Known) each(ctx context.Context, f nostr.Filter, give func(id string, at nostr.Timestamp) error) error {
	// What moves from held to accepted in the meantime must be in one of both: held is read first.
	waiting := k.Held.All()
	view := k.Index.View()
	defer view.Close()
	for e, err := range view.IDs(ctx, f) {
		if err != nil {
			return fmt.Errorf("read the index: %w", err)
		}
		if err := give(hex.EncodeToString(e.ID[:]), e.CreatedAt); err != nil {
			return err
		}
	}
	return k.others(ctx, view, waiting, f, true, give)
}

// others gives every id for a filter once that is not accepted: held ones, then rejected ones, if
// these are wanted too.
func (k Known) others(
	ctx context.Context, view *eventdb.View, waiting []*held.Entry, f nostr.Filter, rejected bool,
	give func(id string, at nostr.Timestamp) error,
) error {
	given := map[string]bool{}
	for _, e := range waiting {
		if !f.Matches(e.Event) {
			continue
		}
		accepted, err := view.Has(e.Event.ID)
		if err != nil {
			return fmt.Errorf("read the index: %w", err)
		}
		if accepted {
			continue
		}
		given[e.Event.ID] = true
		if err := give(e.Event.ID, e.Event.CreatedAt); err != nil {
			return err
		}
	}
	if !rejected {
		return nil
	}
	for r := range k.Rejected.Matching(f, time.Now()) {
		accepted, err := view.Has(r.ID)
		if err != nil {
			return fmt.Errorf("read the index: %w", err)
		}
		if accepted || given[r.ID] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := give(r.ID, r.CreatedAt); err != nil {
			return err
		}
	}
	return nil
}
