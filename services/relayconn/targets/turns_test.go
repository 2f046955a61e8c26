package targets_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/services/relayconn/targets"
)

// busy counts how many consumers are being made at once.
type busy struct {
	jetstream.JetStream
	now, most atomic.Int32
}

func (b *busy) OrderedConsumer(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	if now := b.now.Add(1); now > b.most.Load() {
		b.most.Store(now)
	}
	defer b.now.Add(-1)
	return b.JetStream.OrderedConsumer(ctx, stream, cfg)
}

// TestFewTargetsAreReadAtOnce: of many relays that a worker claims, a few are read at a time, until
// all are; one that is not read any more keeps no turn.
func TestFewTargetsAreReadAtOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	turns, js := targets.NewTurns(), &busy{JetStream: b.JS}
	ended, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	follow := func(ctx context.Context, name string) *targets.Follower {
		f := targets.NewFollower(0, nil)
		running.Go(func() {
			if err := f.Run(ctx, js, name, turns, quiet); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	// Bad names take none, nor do those that end before or after they are read.
	for range 10 {
		if err := targets.NewFollower(0, nil).Run(ended, b.JS, "no name", turns, quiet); err == nil {
			t.Error("it follows what is no name")
		}
		<-follow(ended, "r.example").Read()
	}
	end()
	follow(ended, "r.example")
	running.Wait()
	ctx, stop := context.WithCancel(t.Context())
	var all []*targets.Follower
	for n := range 50 {
		name := fmt.Sprintf("r%d.example", n)
		publish(t, b, name, false, repo("30617:a:x"))
		all = append(all, follow(ctx, name))
	}
	for _, f := range all {
		<-f.Read()
		if got, _ := f.Current(); len(got.Repos) != 1 {
			t.Errorf("read as %v", got)
		}
	}
	stop()
	running.Wait()
	if most := js.most.Load(); most > 4 {
		t.Errorf("%d were read at once", most)
	}
}
