package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
)

// running is how a command reaches a running system. It needs the settings of the bus and no
// others.
type running struct {
	Wait       time.Duration `default:"10s" help:"How long NATS may take to answer."`
	config.Bus `embed:"" group:"Bus"`
}

// connectTime is how long NATS may take where there is no flag for it.
const connectTime = 10 * time.Second

// reach connects to the NATS of a running system: the server that is named, or else the one that
// `tendril up` embeds. user is who the command is at an embedded server with a password; empty: the
// operator. A failure is a sentence for the operator.
func (r running) reach(command, user string) (*bus.Bus, error) {
	options := bus.Options{
		Name: "tendril " + command, URL: r.NATSURL, LoginFile: r.NATSLoginFile, Creds: r.NATSCreds, CA: r.NATSCA, Cert: r.NATSCert, Key: r.NATSKey,
	}
	embedded := r.NATSURL == ""
	if embedded {
		if r.NATSListen == "none" {
			return nil, &config.Error{Setting: "NGIT_NATS_LISTEN", Value: r.NATSListen, Reason: "the NATS of `tendril up` listens nowhere, so it cannot be looked at; want NGIT_NATS_URL or the address that it listens on"}
		}
		options.URL, options.Password, options.Role = "nats://"+r.NATSListen, r.NATSPassword, user
	}
	b, err := bus.Look(options, r.Wait)
	switch {
	case embedded && errors.Is(err, nats.ErrAuthorization):
		fault := "wrong"
		if r.NATSPassword == "" {
			fault = "not set"
		}
		return nil, fmt.Errorf("NGIT_NATS_PASSWORD is %s: the NATS of `tendril up` at %s wants the password that it was started with", fault, options.URL)
	case errors.Is(err, nats.ErrNoServers):
		return nil, fmt.Errorf("no NATS server answers at %s: nothing runs there, or it is elsewhere (NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)", bus.Redacted(options.URL))
	}
	return b, err
}

// do does something with a running system, until the first signal, or for so long if wait is not 0.
func (r running) do(command, user string, wait time.Duration, do func(context.Context, *bus.Bus) error) error {
	b, err := r.reach(command, user)
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, stop := untilSignal()
	defer stop()
	if wait > 0 {
		limited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		ctx = limited
	}
	return do(ctx, b)
}

// asks is what a question to a running system needs.
type asks struct {
	JSON    bool `name:"json" help:"Print JSON."`
	running `embed:""`
}

// print prints an answer, for machines or for people.
func (a asks) print(out io.Writer, value any, text func(io.Writer) error) error {
	if a.JSON {
		return printJSON(out, value)
	}
	return text(out)
}

// untilSignal returns a context that ends with the first signal. A second one ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// errNoStreams is a NATS server that no Tendril uses.
func errNoStreams(b *bus.Bus) error {
	return fmt.Errorf("NATS at %s has no streams of Tendril: none has run with it", bus.Redacted(b.Conn.ConnectedUrl()))
}

// unanswered makes a sentence of a deadline that has passed.
func (r running) unanswered(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s (--wait): %w", r.Wait, err)
	}
	return err
}
