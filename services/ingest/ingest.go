package ingest

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
	"tendril.dev/services/ingest/writer"
)

// Run runs one replica until ctx ends. The node follows the log into its index.
func Run(ctx context.Context, n *node.Node) error {
	if n.Settings.PrivateMode { // before anything private is stored
		if err := bans.MarkPrivate(ctx, n.Bus.JS, true, "ingest "+n.Worker); err != nil {
			return err
		}
	}
	var refused refusals
	w, err := writer.New(ctx, n, refused.add)
	if err != nil {
		return err
	}
	mark, err := limit.LogMark(ctx, n.Bus, n.Settings.LogMaxBytes)
	if err != nil {
		return err
	}
	if mark == 0 {
		n.Log.Warn("the log has no high-water mark, because the NATS server states no limit; set NGIT_LOG_MAX_BYTES")
	}
	n.Count(func(figures map[string]int64) { figures["log_max_bytes"] = mark })
	n.Ready.Note("full", func() string { return cmp.Or(w.Unstored(), w.Marks.Full()) })
	n.Ready.Add("writer", w.Troubled)
	n.Projection("ingest_held", proto.KVStream(proto.BucketHeld), w.Held.Seq)
	n.Projection("ingest_rejected", proto.StreamRejected, w.Rejected.Seq)

	n.Bans.OnAudit(func(subject bans.Subject, by proto.Ban, lifted bool) {
		if lifted {
			n.Log.Info("a ban is lifted", "kind", subject.Kind(), "what", subject.String(), "by", by.By)
			return
		}
		n.Log.Info("banned", "kind", subject.Kind(), "what", subject.String(), "by", by.By, "reason", by.Reason, "purge",
			by.Purge)
	})
	n.Bans.OnName(func(name string, by proto.Ban, ended bool) {
		if ended {
			n.Log.Info("a name of a repository is taken back", "name", name, "by", by.By)
			return
		}
		n.Log.Info("a repository has a name", "name", name, "repository", by.What, "by", by.By)
	})
	group, ctx := errgroup.WithContext(ctx)
	for _, stream := range []*bus.Follower{w.Held.Follower, w.Rejected.Follower} {
		group.Go(func() error { return stream.Run(ctx) })
	}
	// A standby is ready too: ready means that it could write.
	n.Ready.Add("projections", func() error { return cmp.Or(w.Held.CaughtUp(), w.Rejected.CaughtUp()) })
	questions := (&known.Known{Index: n.Index, Held: w.Held, Rejected: w.Rejected}).Questions()
	questions[proto.SubjectManage] = query.Asked((&management{n}).manage)
	group.Go(func() error {
		return query.Answer(ctx, n.Bus.Conn, n.Log, proto.ServiceQuery,
			"events that need not be fetched, and requests of the operator's client", questions)
	})
	group.Go(func() error { return refused.answer(ctx, n) })
	group.Go(func() error { w.Marks.Run(ctx); return nil })
	group.Go(func() error { w.Usage.Run(ctx); return nil })
	group.Go(func() error { return w.Run(ctx) })
	return group.Wait()
}
