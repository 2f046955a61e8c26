package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/obs"
)

// Main is the main function of a service that runs alone: settings, node, observation on its own port, and a graceful stop on
// SIGINT or SIGTERM. It does not return.
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
	if settings.NATSURL == "" {
		return errors.New("NGIT_NATS_URL is empty: a service that runs alone needs a NATS server that the others share (`tendril up` embeds one)")
	}
	log, err := obs.NewLogger(os.Stderr, settings.LogLevel, settings.LogFormat)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := Open(ctx, s.Name, settings, log)
	if err != nil {
		return err
	}
	observation := &http.Server{Addr: settings.ObserveAddress, Handler: n.Observation, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- observation.ListenAndServe() }()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
			cancel(fmt.Errorf("NGIT_OBSERVE_ADDRESS is %q: %w", settings.ObserveAddress, err))
		}
	}()
	err = n.Run(ctx, s)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = errors.Join(cause, err)
	}
	observation.Close()
	return errors.Join(err, n.Close())
}
