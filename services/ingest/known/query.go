// Package idquery answers the micro services grasp.query.ids and grasp.query.reconcile: which
// events for a filter need not be fetched, because they are accepted, held, or were rejected within
// the last days. The one lists them, the other finds out step by step
// which of a relay's are not among them.
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
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lists, steps := make(chan func(context.Context)), make(chan func(context.Context))
	var answering sync.WaitGroup
	for _, jobs := range []chan func(context.Context){lists, steps} {
		for range atOnce {
			answering.Go(func() { work(ctx, jobs) })
		}
	}
	memory := newMemory()
	err = errors.Join(
		endpoint(ctx, service, "ids", proto.SubjectQueryIDs, lists, log, func(r micro.Request) (func(context.Context), error) {
			f, err := parse(r.Data())
			reply := r.Reply()
			return func(ctx context.Context) { known.serve(ctx, conn, query{reply, f}, log) }, err
		}),
		endpoint(ctx, service, "reconcile", proto.SubjectQueryReconcile, steps, log, func(r micro.Request) (func(context.Context), error) {
			s, err := parseStep(r.Data())
			reply := r.Reply()
			return func(ctx context.Context) { known.step(ctx, conn, reply, s, memory, log) }, err
		}))
	if err == nil {
		<-ctx.Done()
	}
	stop()
	if stopErr := service.Stop(); stopErr != nil {
		log.Debug("stopping the service of ids", "error", stopErr)
	}
	answering.Wait()
	return err
}

// work does one job after the other.
func work(ctx context.Context, jobs <-chan func(context.Context)) {
	for {
		select {
		case job := <-jobs:
			job(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// endpoint answers one kind of query. The micro service reads and writes the request when its
// handler has returned, so the request itself is only answered in here, if it is refused. Any other
// answer goes to its reply subject, by the job that read makes of it.
func endpoint(
	ctx context.Context, service micro.Service, name, subject string, jobs chan<- func(context.Context), log *slog.Logger,
	read func(micro.Request) (job func(context.Context), err error),
) error {
	handle := func(r micro.Request) {
		job, err := read(r)
		if err != nil {
			log.Warn("a query was refused", "subject", subject, "error", err)
			if err := r.Error(proto.QueryBad, err.Error(), nil); err != nil {
				log.Debug("an error could not be told to who asked", "error", err)
			}
			return
		}
		select {
		case jobs <- job:
		case <-ctx.Done():
		}
	}
	err := service.AddEndpoint(name, micro.HandlerFunc(handle), micro.WithEndpointSubject(subject),
		micro.WithEndpointPendingLimits(maxWaiting, maxWaiting*maxRequest))
	if err != nil {
		return fmt.Errorf("serve %s: %w", subject, err)
	}
	return nil
}

// query is one question: which ids match the filter, and where the answer goes.
type query struct {
	reply  string
	filter nostr.Filter
}

var errQuery = errors.New("not a filter")

// parse reads the filter of a query. Its limit is dropped.
func parse(data []byte) (f nostr.Filter, err error) {
	if len(data) > maxRequest {
		return f, fmt.Errorf("%w: larger than %d bytes", errQuery, maxRequest)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%w: %w", errQuery, err)
	}
	f.Limit, f.LimitZero = 0, false
	return f, nil
}

// serve answers one query, and ends an answer that is not whole with an error.
func (k Known) serve(ctx context.Context, conn *nats.Conn, q query, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	err := k.answer(ctx, conn, q)
	if err == nil {
		return
	}
	log.Warn("a query for ids was not answered whole", "error", err)
	failure := &nats.Msg{Subject: q.reply, Header: nats.Header{
		micro.ErrorCodeHeader: []string{"500"}, micro.ErrorHeader: []string{err.Error()},
	}}
	if err := conn.PublishMsg(failure); err != nil {
		log.Debug("an error could not be told to who asked", "error", err)
	}
}

func (k Known) answer(ctx context.Context, conn *nats.Conn, q query) error {
	chunk := make([]proto.KnownID, 0, chunkSize)
	total, chunks := 0, 0
	send := func() error {
		data, err := json.Marshal(chunk)
		if err != nil {
			return fmt.Errorf("write ids: %w", err)
		}
		if err := conn.Publish(q.reply, data); err != nil {
			return fmt.Errorf("send ids: %w", err)
		}
		chunk = chunk[:0]
		if chunks++; chunks%flushEvery == 0 {
			return conn.FlushWithContext(ctx)
		}
		return nil
	}
	err := k.each(ctx, q.filter, func(id string, at nostr.Timestamp) error {
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
