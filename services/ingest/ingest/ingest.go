// Package ingest is the service that decides what is accepted: it reads candidates, and writes the
// log, the held events and the rejected ids. Any number of replicas may run; one of them writes,
// the others stand by with their projections warm.
package ingest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/held"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
	"tendril.dev/services/ingest/policy"
	"tendril.dev/services/ingest/writer"
)

// Run runs one replica until ctx ends. The node follows the log into its index.
func Run(ctx context.Context, n *node.Node) error {
	s := n.Settings
	bounds := policy.DefaultBounds
	bounds.Bytes = s.HeldBytes
	rules, err := policy.New(s, bounds, time.Now)
	if err != nil {
		return err
	}
	metrics, err := writer.NewMetrics(n.Metrics)
	if err != nil {
		return err
	}
	set := held.NewSet()
	index := known.NewRejected(time.Duration(s.RejectedColdSeconds)*time.Second, policy.Rules(s.Policy))
	budgets, err := budgetsOf(ctx, n)
	if err != nil {
		return err
	}
	n.Ready.Note("full", budgets.Marks.Full)
	w := writer.New(writer.Options{
		Name: n.Worker, Incarnation: n.Incarnation, Bus: n.Bus, Index: n.Index, Held: set, Rejected: index,
		Park:   writer.NewPark(time.Duration(s.RejectedHotSeconds)*time.Second, s.RejectedHotEvents),
		Policy: rules, Metrics: metrics, Log: n.Log, Budgets: budgets,
		BatchSize: s.BatchSize, Domain: s.Domain, KeepDeleted: s.IgnoreDeletions,
	})

	n.Projection("ingest_held", proto.KVStream(proto.BucketHeld), set.Seq)
	n.Projection("ingest_rejected", proto.StreamRejected, index.Seq)
	n.Ready.Add("writer", w.Troubled)
	// A standby is ready too: ready means that it could write.
	var caughtUp sync.Map
	for _, stream := range []string{proto.KVStream(proto.BucketHeld), proto.StreamRejected} {
		n.Ready.Add(stream, func() error {
			if _, ok := caughtUp.Load(stream); !ok {
				return fmt.Errorf("reading %s", stream)
			}
			return nil
		})
	}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return set.Follow(ctx, n.Bus.JS, n.Log, func(held.Change) {})
	})
	group.Go(func() error {
		return bus.Follow(ctx, n.Bus.JS, bus.Reading{Stream: proto.StreamRejected}, n.Log, func(m bus.Message) {
			if err := index.Read(m); err != nil {
				n.Log.Error("a rejection cannot be read", "error", err)
			}
		})
	})
	group.Go(func() error {
		return known.Serve(ctx, n.Bus.Conn, known.Known{Index: n.Index, Held: set, Rejected: index}, n.Log)
	})
	group.Go(func() error { budgets.Marks.Run(ctx); return nil })
	group.Go(func() error { budgets.Usage.Run(ctx); return nil })
	group.Go(func() error {
		// What expired in purgatory must not come in again because a new writer has not read yet
		// that it did.
		for stream, reach := range map[string]func(context.Context, uint64) error{
			proto.KVStream(proto.BucketHeld): set.WaitFor, proto.StreamRejected: index.WaitFor,
		} {
			for err := readAll(ctx, n.Bus, stream, reach); err != nil; err = readAll(ctx, n.Bus, stream, reach) {
				n.Log.Warn("the state at the start could not be read; trying again", "error", err)
				select {
				case <-time.After(retryRead):
				case <-ctx.Done():
					return nil
				}
			}
			caughtUp.Store(stream, true)
		}
		return w.Run(ctx)
	})
	return group.Wait()
}

// budgetsOf are the bounds of what is stored, by the settings.
func budgetsOf(ctx context.Context, n *node.Node) (b writer.Budgets, err error) {
	s := n.Settings
	b = writer.Budgets{
		Author: s.DailyAuthorBytes, Address: s.DailyAddressBytes, Relay: s.DailyRelayBytes, Bootstrap: map[string]bool{},
	}
	for _, given := range s.BootstrapRelays {
		url, err := nostr.NormalizeRelayURL(given)
		if err != nil {
			return b, fmt.Errorf("NGIT_SYNC_BOOTSTRAP_RELAY_URL is %q: %w", given, err)
		}
		b.Bootstrap[string(url)] = true
	}
	if b.Usage, err = limit.OpenUsage(ctx, n.Bus, n.Log, time.Now); err != nil {
		return b, err
	}
	looks := []limit.Look{limit.Log(n.Bus, s.LogMaxBytes)}
	if s.DatabaseBackend != "memory" {
		looks = append(looks, limit.Disk(s.RelayDataPath))
	}
	b.Marks, err = limit.NewMarks("log", n.Log, n.Metrics, looks...)
	return b, err
}

// retryRead is the pause before it is tried again to read what was there at the start.
const retryRead = time.Second

// readAll waits until a stream is read up to where it ends now.
func readAll(ctx context.Context, b *bus.Bus, stream string, reach func(context.Context, uint64) error) error {
	last, err := b.LastSeq(ctx, stream)
	if err != nil {
		return err
	}
	return b.CatchUp(ctx, stream, last, reach)
}
