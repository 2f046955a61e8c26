package ingest

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
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
	rules, err := policy.New(s, n.Bans, bounds, time.Now)
	if err != nil {
		return err
	}
	metrics, err := writer.NewMetrics(n.Metrics)
	if err != nil {
		return err
	}
	budgets, err := budgetsOf(ctx, n)
	if err != nil {
		return err
	}
	n.Ready.Note("full", budgets.Marks.Full)
	mark, err := limit.LogMark(ctx, n.Bus, s.LogMaxBytes)
	if err != nil {
		return err
	}
	n.Count(func(figures map[string]int64) { figures["log_max_bytes"] = mark })
	set := held.NewSet(n.Bus.JS, n.Log, nil)
	rejected := known.NewRejected(n.Bus.JS, n.Log, time.Duration(s.RejectedColdSeconds)*time.Second, policy.Rules(s.Policy))
	var refused refusals
	w := writer.New(writer.Options{
		Name: n.Worker, Bus: n.Bus, Index: n.Index, Held: set, Rejected: rejected,
		Park:   writer.NewPark(time.Duration(s.RejectedHotSeconds)*time.Second, s.RejectedHotEvents),
		Policy: rules, Metrics: metrics, Log: n.Log, Budgets: budgets, Bans: n.Bans, Grace: s.DeletionGrace,
		BatchSize: s.BatchSize, Domain: s.Domain, KeepDeleted: s.IgnoreDeletions, Refused: refused.add,
	})
	n.Ready.Add("writer", w.Troubled)

	group, ctx := errgroup.WithContext(ctx)
	streams := map[string]*bus.Follower{proto.KVStream(proto.BucketHeld): set.Follower, proto.StreamRejected: rejected.Follower}
	n.Projection("ingest_held", proto.KVStream(proto.BucketHeld), set.Seq)
	n.Projection("ingest_rejected", proto.StreamRejected, rejected.Seq)
	for name, stream := range streams {
		// A standby is ready too: ready means that it could write.
		n.Ready.Add(name, func() error {
			select {
			case <-stream.Ready():
				return nil
			default:
				return fmt.Errorf("reading %s", name)
			}
		})
		group.Go(func() error { return stream.Run(ctx) })
	}
	group.Go(func() error {
		return known.Serve(ctx, n.Bus.Conn, known.Known{Index: n.Index, Held: set, Rejected: rejected}, n.Log)
	})
	group.Go(func() error { return refused.answer(ctx, n.Bus.Conn, n.Log) })
	manager := &management{js: n.Bus.JS, bans: n.Bans, domain: s.Domain, key: func() (config.Key, error) { return s.FindKey(".") }, log: n.Log}
	group.Go(func() error { return manager.serve(ctx, n.Bus.Conn) })
	group.Go(func() error { budgets.Marks.Run(ctx); return nil })
	group.Go(func() error { budgets.Usage.Run(ctx); return nil })
	group.Go(func() error {
		// What expired in purgatory must not come in again because a new writer has not read yet
		// that it did.
		for _, stream := range streams {
			select {
			case <-stream.Ready():
			case <-ctx.Done():
				return nil
			}
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
	bootstrap, err := s.Bootstrap()
	if err != nil {
		return b, err
	}
	for _, url := range bootstrap {
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
