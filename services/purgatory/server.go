package purgatory

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"tendril.dev/lib/claim"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/node"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
)

// server serves git to the front doors.
type server struct {
	http.Server
	listener net.Listener
	address  string // that others reach it by
	log      *slog.Logger
}

// listen opens the port, so that its address can be told before anything is served.
func (w *worker) listen() (*server, error) {
	s := w.node.Settings
	listener, err := net.Listen("tcp", s.GitListen)
	if err != nil {
		return nil, node.ListenError("NGIT_GIT_LISTEN", s.GitListen, err)
	}
	return &server{listener: listener, address: listener.Addr().String(), log: w.log}, nil
}

// serve begins to answer. directory tells who holds what this worker does not hold any more.
func (s *server) serve(w *worker, directory *claim.Directory) {
	var prs githttp.Authority
	if w.node.Settings.ContributorPRs {
		below := w.pushes
		below.prs = true
		prs = below
	}
	s.Handler = githttp.New(w.pushes, githttp.Options{
		PRs:          prs,
		MaxPushBytes: w.node.Settings.MaxPushBytes, Stall: clientStall,
		Log: w.log, Metrics: githttp.NewMetrics(w.node.Metrics, w.node.Settings.TopRepos),
		HandOver: gitquery.HandOverWait,
		Holder: func(identifier string) (string, bool) {
			holder, held := directory.Holder(proto.ShardName(proto.ShardOf(identifier)))
			return holder.Address, held && holder.Name != w.node.Worker
		},
	})
	s.ReadHeaderTimeout = 10 * time.Second
	go func() {
		if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("git can no longer be served", "error", err)
		}
	}()
}

// Shutdown lets requests finish in time. Those that have not are cut off, which is logged and no
// error: how fast clients read must not decide whether this stop was a good one.
func (s *server) Shutdown(deadline time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := s.Server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("git requests that were under way are cut off")
		err = nil
	}
	return err
}
