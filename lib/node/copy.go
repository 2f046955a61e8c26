package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"tendril.dev/lib/indexcopy"
	"tendril.dev/proto"
)

// copying is how a process takes part in the copying of indexes.
type copying struct {
	gives   string   // the user as whom it gives copies
	takes   []string // the users of whom it takes one
	metrics *indexcopy.Metrics
}

// newCopying says how a process with these services takes part; nil: not at all, because it shares
// its log with nobody, or has no files.
func (n *Node) newCopying(services []Service) (*copying, error) {
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
	}
	c := &copying{}
	c.gives, c.takes = proto.IndexCopies(names)
	if c.gives == "" || n.Settings.NATSURL == "" || n.Settings.DatabaseBackend == "memory" {
		return nil, nil
	}
	var err error
	if c.metrics, err = indexcopy.NewMetrics(n.Metrics); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	return c, nil
}

// takeCopy takes a copy of another process's index, if that is worth it; else the index is left to
// be made from the log. Until then readiness says how far it is.
func (n *Node) takeCopy(ctx context.Context, services []Service) (err error) {
	if n.copying, err = n.newCopying(services); n.copying == nil {
		return err
	}
	var doing atomic.Pointer[string]
	tell := func(what string) { doing.Store(&what) }
	tell("comparing the index with the log")
	n.Ready.Add("index", func() error { return errors.New(*doing.Load()) })
	_, err = indexcopy.Taker{
		Conn: n.Bus.Conn, JS: n.Bus.JS, Index: n.Index, From: n.copying.takes, Name: n.peerName(),
		Progress: tell, Metrics: n.copying.metrics, Log: n.Log, Worth: n.copyWorth,
	}.Take(ctx)
	if err != nil {
		return fmt.Errorf("take a copy of the event index: %w", err)
	}
	return nil
}

// peerName is how this process is named to others that copy indexes.
func (n *Node) peerName() string { return n.process + " " + n.Worker }

// giveCopies is the service that gives copies of the index. What goes wrong with it stops nothing.
func giveCopies(ctx context.Context, n *Node) error {
	if n.Settings.IndexCopyRate > 0 {
		err := indexcopy.Giver{
			Conn: n.Bus.Conn, Index: n.Index, As: n.copying.gives, Name: n.peerName(),
			Rate: n.Settings.IndexCopyRate, Metrics: n.copying.metrics, Log: n.Log,
		}.Serve(ctx)
		if err != nil {
			n.Log.Warn("no copies of the event index are given", "error", err)
		}
	}
	<-ctx.Done()
	return nil
}
