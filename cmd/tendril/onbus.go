package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
)

// onBus is a command that asks a running system over its bus. It needs the settings of the bus and
// no others.
type onBus struct {
	config.Bus `embed:"" group:"Bus"`
}

// open connects: to the server that is named, or else to the one that `tendril up` embeds.
func (o *onBus) open(name string, timeout time.Duration) (*bus.Bus, error) {
	url, err := o.url()
	if err != nil {
		return nil, err
	}
	options := bus.Options{
		Name: name, URL: url, LoginFile: o.NATSLoginFile, Creds: o.NATSCreds, CA: o.NATSCA, Cert: o.NATSCert, Key: o.NATSKey,
	}
	if o.NATSURL == "" {
		options.Password = o.NATSPassword
	}
	b, err := bus.Look(options, timeout)
	if err != nil {
		return nil, o.unreachable(url, err)
	}
	return b, nil
}

// url is where the bus is.
func (o *onBus) url() (string, error) {
	switch {
	case o.NATSURL != "":
		return o.NATSURL, nil
	case o.NATSListen == "none":
		return "", &config.Error{Setting: "NGIT_NATS_LISTEN", Value: o.NATSListen, Reason: "the NATS of `tendril up` listens nowhere, so nobody can look at it; want NGIT_NATS_URL or the address that it listens on"}
	}
	return "nats://" + o.NATSListen, nil
}

// unreachable is the sentence for an operator whose system is not there.
func (o *onBus) unreachable(url string, err error) error {
	if !errors.Is(err, nats.ErrNoServers) {
		return err
	}
	return fmt.Errorf("no NATS server answers at %s: nothing runs there, or it is elsewhere (NGIT_NATS_URL; NGIT_NATS_LISTEN of `tendril up`)", bus.Redacted(url))
}
