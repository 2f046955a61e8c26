package node

import (
	"context"
	"slices"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// hasIndex reports whether a process with these services keeps an index of the log: one of them
// needs it, or there is nobody else who could be asked, or it is not said which services there will
// be.
func hasIndex(natsURL string, services []Service) bool {
	needs := func(s Service) bool { return !s.Early && !s.Asks }
	known := slices.ContainsFunc(services, func(s Service) bool { return !s.Early })
	return natsURL == "" || !known || slices.ContainsFunc(services, needs)
}

// ask has the process ask others about accepted events, and nothing of the log is kept here.
func (n *Node) ask(ctx context.Context) error {
	remote, err := query.NewRemote(ctx, n.Bus, n.Log)
	if err != nil {
		return err
	}
	n.Accepted = remote
	n.Ready.Add("accepted events", remote.Answered)
	return nil
}

// events are the services that keep what the process knows of accepted events: one follows the log
// into the index, or asks ingest now and then whether it answers. Only a process with ingest
// answers others, because pushes are decided by these answers; NATS permits it to no other login.
func (n *Node) events(services []Service) []Service {
	own := []Service{{Name: "progress", Run: func(ctx context.Context, n *Node) error { return n.lag.tell(ctx, n) }}}
	if remote, asks := n.Accepted.(*query.Remote); asks {
		return append(own, Service{Name: "accepted events", Run: func(ctx context.Context, _ *Node) error { return remote.Run(ctx) }})
	}
	own = append(own, Service{Name: "index", Run: func(ctx context.Context, n *Node) error {
		return eventdb.Follow(ctx, n.Bus.JS, n.Index, n.Log)
	}})
	if slices.ContainsFunc(services, func(s Service) bool { return s.Name == proto.UserIngest }) {
		own = append(own, Service{Name: "accepted events", Run: func(ctx context.Context, n *Node) error {
			return query.Serve(ctx, n.Accepted.(*query.Index), n.Bus.Conn, n.Log)
		}})
	}
	return own
}

// indexFailed tells when the index cannot go on; nil, which never tells, where there is none.
func (n *Node) indexFailed() <-chan error {
	if n.Index == nil {
		return nil
	}
	return n.Index.Failed()
}

// closeIndex closes the index if there is one.
func (n *Node) closeIndex() error {
	if n.Index == nil {
		return nil
	}
	return n.Index.Close()
}
