package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/obs"
)

// Main is the main function of a service that runs alone: settings, node, observation on its own
// port, and a graceful stop on SIGINT or SIGTERM. It does not return.
func Main(s Service) {
	if err := runAlone(s); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runAlone(s Service) error {
	settings, err := config.Parse(s.Name, os.Args[1:])
	if err != nil {
		return err
	}
	return ServeApart(s.Name, settings, s)
}

// ServeApart is [Serve] for services whose system has other processes: it needs a NATS server that
// they share, and serves /metrics, /healthz and /readyz on a port of its own.
func ServeApart(name string, s config.Settings, services ...Service) error {
	if s.NATSURL == "" {
		return &config.Error{Setting: "NGIT_NATS_URL", Reason: "is not set: a service that runs alone needs a NATS server that the others share (`tendril up` embeds one)"}
	}
	return Serve(name, s, append([]Service{Observation}, services...)...)
}

// Serve opens a node and runs the services in it until SIGINT or SIGTERM, which stop them
// gracefully; a second signal ends the process at once. name says what the process is ("ingest",
// "up").
func Serve(name string, s config.Settings, services ...Service) error {
	log, err := obs.NewLogger(os.Stderr, s.LogLevel, s.LogFormat)
	if err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, release) // the next signal ends the process
	n, err := prepare(name, s, log)
	if err != nil {
		return err
	}
	endProfiles, err := n.serveProfiles()
	if err != nil {
		return err
	}
	defer endProfiles()
	early, others := split(services)
	failed := make(chan *running, 1)
	var started []*running
	for _, s := range early {
		started = append(started, n.start(ctx, s, failed))
	}
	if err := n.openWith(ctx, len(early) > 0, failed, others); err != nil {
		if ctx.Err() != nil {
			err = nil // stopped before it began
		}
		return n.stopAll(started, err)
	}
	err = n.run(ctx, started, failed, others)
	if closeErr := n.Close(); err == nil {
		err = closeErr
	}
	return err
}

// split separates the services that begin before the bus is there.
func split(services []Service) (early, others []Service) {
	for _, s := range services {
		if s.Early {
			early = append(early, s)
		} else {
			others = append(others, s)
		}
	}
	return early, others
}

// openWith opens bus and index while early services run, and gives up when one of them fails. A
// process that can say what it waits for waits as long as it takes.
func (n *Node) openWith(ctx context.Context, observed bool, failed chan *running, services []Service) error {
	opening, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	opened := make(chan error, 1)
	var waiting func(string)
	if observed {
		waiting = n.bus.set
	}
	go func() { opened <- n.open(opening, waiting, services) }()
	select {
	case err := <-opened:
		return err
	case r := <-failed:
		giveUp(r.err)
		if err := <-opened; err == nil {
			return errors.Join(r.err, n.Close())
		}
		return r.err
	}
}

// Observation serves /metrics, /healthz and /readyz on NGIT_OBSERVE_ADDRESS, for processes that
// have no front door, or whose front door must not show everything to everybody.
var Observation = Service{Name: "observation", Early: true, Run: func(ctx context.Context, n *Node) error {
	listener, err := net.Listen("tcp", n.Settings.ObserveAddress)
	if err != nil {
		return ListenError("NGIT_OBSERVE_ADDRESS", n.Settings.ObserveAddress, err)
	}
	n.Announce("observation", "http://"+listener.Addr().String())
	n.Log.Info("listening", "address", listener.Addr().String())
	server := &http.Server{Handler: n.Observation, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}}

// ListenError is why the address of a setting cannot be listened on, in a sentence for the
// operator.
func ListenError(setting, address string, err error) error {
	reason := err.Error()
	var sys *os.SyscallError
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		reason = "address already in use; stop what listens there, or choose another"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		reason = "this machine has no such address; choose another"
	case errors.Is(err, syscall.EACCES):
		reason = "permission denied; choose a port above 1023"
	case errors.As(err, &sys):
		reason = sys.Err.Error() + "; choose another"
	}
	return &config.Error{Setting: setting, Value: address, Reason: reason}
}
