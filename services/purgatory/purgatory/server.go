package purgatory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"tendril.dev/lib/node"
	"tendril.dev/services/purgatory/smarthttp"
)

// server serves git to the front doors.
type server struct {
	http.Server
	listener net.Listener
	address  string // that others reach it by
}

// listen opens the port, so that its address can be told before anything is served.
func (w *worker) listen() (*server, error) {
	s := w.node.Settings
	listener, err := net.Listen("tcp", s.GitListen)
	if err != nil {
		return nil, node.ListenError("NGIT_GIT_LISTEN", s.GitListen, err)
	}
	sv := &server{listener: listener, address: s.GitAdvertise}
	if sv.address == "" {
		sv.address = listener.Addr().String()
	}
	return sv, nil
}

// serve begins to answer.
func (s *server) serve(w *worker) error {
	metrics, err := smarthttp.NewMetrics(w.node.Metrics, w.node.Settings.TopRepos)
	if err != nil {
		return err
	}
	limits := w.node.Settings.Git
	s.Handler = smarthttp.New(w, smarthttp.Options{
		MaxPushBytes: limits.MaxPushBytes, MinRate: limits.GitMinRate, Stall: limits.GitStall, TransferTime: limits.GitTransferTime,
		Requests: limits.GitRequests, SpoolBytes: limits.GitSpoolBytes, Log: w.log, Metrics: metrics,
	})
	s.ReadHeaderTimeout = 10 * time.Second
	go func() {
		if err := s.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("git can no longer be served", "error", err)
		}
	}()
	return nil
}

// Shutdown lets requests finish until ctx ends.
func (s *server) Shutdown(ctx context.Context) error {
	if err := s.Server.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop serving git: %w", err)
	}
	return nil
}
