package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
)

// reach connects a command to the NATS of a running system: the server that is named, or else the
// one that `tendril up` embeds. user is who it is at an embedded server with a password; empty: the
// operator. A failure is a sentence for the operator.
func reach(s config.Bus, command, user string, timeout time.Duration) (*bus.Bus, error) {
	url, err := natsURL(s)
	if err != nil {
		return nil, err
	}
	options := bus.Options{
		Name: "tendril " + command, URL: url, LoginFile: s.NATSLoginFile, Creds: s.NATSCreds, CA: s.NATSCA, Cert: s.NATSCert, Key: s.NATSKey,
	}
	if s.NATSURL == "" {
		options.Password, options.Role = s.NATSPassword, user
	}
	b, err := bus.Look(options, timeout)
	switch {
	case s.NATSURL == "" && errors.Is(err, nats.ErrAuthorization) && s.NATSPassword == "":
		return nil, fmt.Errorf("NGIT_NATS_PASSWORD is not set: the NATS of `tendril up` at %s wants the password that it was started with", url)
	case s.NATSURL == "" && errors.Is(err, nats.ErrAuthorization):
		return nil, fmt.Errorf("NGIT_NATS_PASSWORD is wrong: the NATS of `tendril up` at %s wants the password that it was started with", url)
	case errors.Is(err, nats.ErrNoServers):
		return nil, fmt.Errorf("no NATS server answers at %s: nothing runs there, or it is elsewhere (NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)", bus.Redacted(url))
	}
	return b, err
}

// natsURL is where the bus is.
func natsURL(s config.Bus) (string, error) {
	switch {
	case s.NATSURL != "":
		return s.NATSURL, nil
	case s.NATSListen == "none":
		return "", &config.Error{Setting: "NGIT_NATS_LISTEN", Value: s.NATSListen, Reason: "the NATS of `tendril up` listens nowhere, so nobody can look at it; want NGIT_NATS_URL or the address that it listens on"}
	}
	return "nats://" + s.NATSListen, nil
}

// errNoStreams is a NATS server that no Tendril uses.
func errNoStreams(b *bus.Bus) error {
	return fmt.Errorf("NATS at %s has no streams of Tendril: none has run with it", bus.Redacted(b.Conn.ConnectedUrl()))
}
