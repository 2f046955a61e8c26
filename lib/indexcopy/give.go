package indexcopy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

const (
	maxRequest = 4 << 10     // bytes
	maxWaiting = 256         // requests of one kind that wait; NATS drops what is more
	lookEvery  = time.Second // whether a taker has gone away
)

// Giver gives copies of an index.
type Giver struct {
	Conn    *nats.Conn
	Index   *eventdb.DB
	As      string // the user that it answers as: see [proto.IndexCopies]
	Name    string // of this process, for people
	Rate    int64  // most bytes a second
	Metrics *Metrics
	Log     *slog.Logger
}

// Serve gives copies until ctx ends, one at a time.
func (g Giver) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d := newDesk(g)
	service, err := micro.AddService(g.Conn, micro.Config{
		Name: proto.ServiceIndex, Version: "1.0.0", Description: "copies of the event index for processes that start",
		StatsHandler: func(e *micro.Endpoint) any {
			if l := d.lent(); l != nil && e.Name == proto.IndexOfferEndpoint {
				return l
			}
			return nil
		},
	})
	if err != nil {
		return fmt.Errorf("give copies of the index: %w", err)
	}
	err = g.endpoints(ctx, service, d)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for err == nil && ctx.Err() == nil {
		select {
		case <-tick.C:
			d.look(time.Now())
		case <-ctx.Done():
		}
	}
	stop()
	if stopErr := service.Stop(); stopErr != nil {
		g.Log.Debug("stopping the service of index copies", "error", stopErr)
	}
	d.close()
	return err
}

// endpoints listens to everything that a giver is asked.
func (g Giver) endpoints(ctx context.Context, service micro.Service, d *desk) error {
	ask := func(answer func(proto.IndexAsk) (any, error)) micro.Handler {
		return handler(g.Log, func(data []byte) (any, error) {
			var m proto.IndexAsk
			if err := parse(data, &m); err != nil {
				return nil, err
			}
			m.For = fmt.Sprintf("%.*s", nameBytes, m.For)
			return answer(m)
		})
	}
	read := func(answer func(proto.IndexRead) (any, error)) micro.Handler {
		return handler(g.Log, func(data []byte) (any, error) {
			var m proto.IndexRead
			if err := parse(data, &m); err != nil {
				return nil, err
			}
			return answer(m)
		})
	}
	var err error
	for verb, h := range map[proto.IndexVerb]micro.Handler{
		proto.IndexBegin: ask(func(m proto.IndexAsk) (any, error) { return d.begin(ctx, m) }),
		proto.IndexReads: read(func(m proto.IndexRead) (any, error) { return d.read(ctx, m) }),
		proto.IndexEnd:   read(func(m proto.IndexRead) (any, error) { return nil, d.end(m) }),
	} {
		subject, bad := proto.IndexSubject(g.As, d.replica, verb)
		err = errors.Join(err, bad, service.AddEndpoint(string(verb), h,
			micro.WithEndpointSubject(subject), micro.WithEndpointPendingLimits(maxWaiting, maxWaiting*maxRequest)))
	}
	// The last one: whoever has an offer may begin at once.
	err = errors.Join(err, service.AddEndpoint(proto.IndexOfferEndpoint, ask(func(proto.IndexAsk) (any, error) { return d.offer() }),
		micro.WithEndpointSubject(proto.IndexOffers(g.As)),
		micro.WithEndpointQueueGroupDisabled(), // everybody is asked
		micro.WithEndpointPendingLimits(maxWaiting, maxWaiting*maxRequest)))
	if err != nil {
		return fmt.Errorf("give copies of the index: %w", err)
	}
	return nil
}

// parse reads a request.
func parse(data []byte, into any) error {
	if len(data) > maxRequest {
		return fmt.Errorf("%w: a request of %d bytes, want %d at most", errBad, len(data), maxRequest)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %w", errBad, err)
	}
	return nil
}

// codeOf is how an error is told to who asks.
func codeOf(err error) string {
	switch {
	case errors.Is(err, errBad):
		return proto.QueryBad
	case errors.Is(err, errGone):
		return proto.QueryGone
	case errors.Is(err, errBusy):
		return proto.QueryBusy
	}
	return proto.QueryFailed
}

// handler answers a request: with bytes as they are, with anything else as JSON.
func handler(log *slog.Logger, answer func(data []byte) (any, error)) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		a, err := answer(r.Data())
		if err != nil {
			err = r.Error(codeOf(err), err.Error(), nil)
		} else if data, is := a.([]byte); is || a == nil {
			err = r.Respond(data)
		} else {
			err = r.RespondJSON(a)
		}
		if err != nil {
			log.Debug("answering a request for a copy of the index", "subject", r.Subject(), "error", err)
		}
	})
}
