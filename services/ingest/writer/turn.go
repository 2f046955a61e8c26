package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// turn is this replica's part in the election of the writer.
//
// The stream GRASP_WRITER holds one message, and its consumer is pinned: JetStream hands the
// message to one client only, until that client has not pulled for the writer's TTL. The client
// that gets it gives it back with a delay, so that each redelivery confirms that it still has the
// turn. The client library keeps the pin's id from the messages and sends it along with every pull;
// a pull with an id that is no longer the pinned one is refused (status 423), upon which the
// library forgets the id and we stand in line again.
//
// Having the turn decides who works, never what is true: two replicas may believe for a moment that
// it is theirs. The log's head decides between them (see Writer.begin).
type turn struct {
	consumer jetstream.Consumer
	unpin    func(context.Context) error
	ttl      time.Duration
	log      *slog.Logger

	beforePull func() // for tests: a pause here is a replica that stands still
}

func openTurn(ctx context.Context, b *bus.Bus, log *slog.Logger) (*turn, error) {
	stream, err := b.JS.Stream(ctx, proto.StreamWriter)
	if err != nil {
		return nil, fmt.Errorf("open the writer's turn: %w", err)
	}
	consumer, err := stream.Consumer(ctx, proto.ConsumerTurn)
	if err != nil {
		return nil, fmt.Errorf("open the writer's turn: %w", err)
	}
	return &turn{
		consumer: consumer, ttl: b.Sizing().TurnTTL, log: log,
		unpin: func(ctx context.Context) error {
			return stream.UnpinConsumer(ctx, proto.ConsumerTurn, proto.WriterGroup)
		},
		beforePull: func() {},
	}, nil
}

// maxHold is how long the turn message is given back for; its return is the confirmation.
const maxHold = time.Second

// run stands in line until ctx ends, and runs write whenever and for as long as the turn is ours.
// write must return soon after its context ends; if it returns by itself, it is run again at the
// next confirmation.
func (t *turn) run(ctx context.Context, write func(context.Context)) {
	var term *term
	var confirmed time.Time // monotonic; it decides who works, not what is true
	for ctx.Err() == nil {
		had, err := t.pull(ctx)
		switch {
		case had:
			confirmed = time.Now()
			if term.over() {
				term = begin(ctx, write)
			}
		case errors.Is(err, jetstream.ErrPinIDMismatch):
			if term != nil {
				t.log.Warn("another replica has the writer's turn")
			}
			term = term.end()
		case term != nil && time.Since(confirmed) > t.ttl:
			t.log.Warn("the writer's turn was not confirmed in time", "ttl", t.ttl)
			term = term.end()
		}
	}
	if term != nil {
		term.end()
		t.pass()
	}
}

// pull asks for the turn message and gives it back with a delay. Each pull, successful or not,
// keeps the pin alive.
func (t *turn) pull(ctx context.Context) (had bool, err error) {
	t.beforePull()
	wait, cancel := context.WithTimeout(ctx, t.ttl/3)
	defer cancel()
	msg, err := t.consumer.Next(jetstream.FetchContext(wait), jetstream.FetchPriorityGroup(proto.WriterGroup))
	switch {
	case err == nil:
		return true, msg.NakWithDelay(min(maxHold, t.ttl/5))
	case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, jetstream.ErrPinIDMismatch):
		return false, err
	}
	if ctx.Err() == nil {
		t.log.Debug("asking for the writer's turn", "error", err)
		select { // an error that comes at once must not become a busy loop
		case <-wait.Done():
		case <-ctx.Done():
		}
	}
	return false, err
}

// pass hands the turn on at a graceful stop, so that a standby need not wait for the pin to lapse.
func (t *turn) pass() {
	ctx, cancel := context.WithTimeout(context.Background(), t.ttl)
	defer cancel()
	if err := t.unpin(ctx); err != nil {
		t.log.Debug("handing on the writer's turn", "error", err)
	}
}

// term is one time of being the writer. A nil term is over.
type term struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func begin(ctx context.Context, write func(context.Context)) *term {
	ctx, cancel := context.WithCancel(ctx)
	t := &term{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		write(ctx)
	}()
	return t
}

func (t *term) over() bool {
	if t == nil {
		return true
	}
	select {
	case <-t.done:
		t.cancel()
		return true
	default:
		return false
	}
}

// end stops the term and waits for what it is doing. It gives nil, the term that is over.
func (t *term) end() *term {
	if t != nil {
		t.cancel()
		<-t.done
	}
	return nil
}
