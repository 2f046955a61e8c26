package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// ahead is how many packs of a lane are read and wait for their decision, and fetchBytes how
	// much more of it is on its way.
	ahead      = 16
	fetchBytes = 2 << 20
	// urgentFor is for how long after an urgent event the next one is expected.
	urgentFor = 2 * time.Second
)

// The lanes, in order of service. Those before older are urgent: somebody waits for their events
// as they happen.
const (
	laneUser = iota
	laneRelease
	laneLive
	laneOlder
	numLanes
)

var laneNames = [numLanes]string{"user", "release", "live", "sync"}

// lanes are the packs that were fetched and wait for their decision. Fetching and reading go on
// while a batch is decided and committed; the bounds of each lane push back into its stream.
type lanes struct {
	fetched   [numLanes]chan *pack
	consuming []jetstream.ConsumeContext
	end       context.CancelFunc
}

func newLanes() *lanes {
	l := &lanes{end: func() {}}
	for i := range l.fetched {
		l.fetched[i] = make(chan *pack, ahead)
	}
	return l
}

// openLanes begins to fetch. broken is called when a lane has no consumer any more: NATS has lost
// it, and the client library would not ask again, or only after half a minute.
func openLanes(ctx context.Context, b *bus.Bus, broken func(error)) (*lanes, error) {
	l := newLanes()
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for i, from := range [numLanes][2]string{
		{proto.StreamUser, proto.ConsumerUser}, {proto.StreamRelease, proto.ConsumerRelease},
		{proto.StreamLive, proto.ConsumerLive}, {proto.StreamSync, proto.ConsumerSync},
	} {
		if err := l.open(ctx, b.JS, l.fetched[i], from[0], from[1], broken); err != nil {
			l.close()
			return nil, fmt.Errorf("fetch candidates of %s: %w", from[1], err)
		}
	}
	return l, nil
}

func (l *lanes) open(
	ctx context.Context, js jetstream.JetStream, fetched chan<- *pack, stream, name string, broken func(error),
) error {
	opening, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	consumer, err := js.Consumer(opening, stream, name)
	if err != nil {
		return err
	}
	consume, err := consumer.Consume(func(m jetstream.Msg) {
		p := readPack(m)
		select {
		case fetched <- p:
		case <-ctx.Done():
			p.giveBack()
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(commitSize, fetchBytes), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		for _, gone := range []error{
			nats.ErrNoResponders, jetstream.ErrConsumerDeleted, jetstream.ErrConsumerNotFound, jetstream.ErrConsumerDoesNotExist,
		} {
			if errors.Is(err, gone) {
				broken(fmt.Errorf("fetch candidates of %s: %w", name, err))
			}
		}
	}))
	if err == nil {
		l.consuming = append(l.consuming, consume)
	}
	return err
}

// close stops fetching and gives back what was fetched. It is given back only when the server
// knows that nothing is fetched any more, or the server would deliver it to this process again.
func (l *lanes) close() {
	for _, c := range l.consuming {
		c.Drain()
	}
	l.end() // from here on what arrives is given back
	for _, c := range l.consuming {
		<-c.Closed()
	}
	for _, lane := range l.fetched {
		for len(lane) > 0 {
			(<-lane).giveBack()
		}
	}
}

// giveBack lets a pack be delivered again at once. If that fails, it comes back when its time for
// an answer is over.
func (p *pack) giveBack() { _ = p.msg.Nak() }

// share says how many events of each lane a batch has, and how many it may have. The first quarter
// of a batch is each lane's own, so that none stops another. While urgent events come, every other
// batch has no older ones, and the others have no more than that quarter: an urgent event waits for
// what is left of one short commit, and then goes in a shorter one.
type share struct {
	size   int // of the batch
	urgent bool
	older  bool // the batch before has no older ones
	taken  [numLanes]int
}

func (s *share) allows(lane int, rest bool) bool {
	most := s.size
	if !rest || lane == laneOlder && s.urgent {
		most = max(1, s.size/numLanes)
	}
	if lane == laneOlder && s.urgent && !s.older {
		most = 0
	}
	return s.taken[lane] < most
}

// next returns the pack that is next by the lanes' shares; nil: none waits that may be taken.
func (l *lanes) next(s *share) (p *pack, lane int) {
	for _, rest := range []bool{false, true} {
		for lane := range l.fetched {
			if !s.allows(lane, rest) {
				continue
			}
			select {
			case p := <-l.fetched[lane]:
				return p, lane
			default:
			}
		}
	}
	return nil, 0
}

// wait waits for a pack that may be taken, until stop is closed, for at most so long. nil: none
// came.
func (l *lanes) wait(ctx context.Context, s *share, stop <-chan struct{}, most time.Duration) (p *pack, lane int) {
	older := l.fetched[laneOlder]
	if !s.allows(laneOlder, true) {
		older = nil
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case p := <-l.fetched[laneUser]:
		return p, laneUser
	case p := <-l.fetched[laneRelease]:
		return p, laneRelease
	case p := <-l.fetched[laneLive]:
		return p, laneLive
	case p := <-older:
		return p, laneOlder
	case <-stop:
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil, 0
}
