package main

import (
	"errors"

	"github.com/alecthomas/kong"

	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
)

// serviceName is one argument. (A []string would be one argument with commas, as settings have it.)
type serviceName string

// runs is `tendril run`. It starts services as their own programs do, but several in one process if
// several are named.
type runs struct {
	Services []serviceName `arg:"" optional:"" name:"service" help:"Services to run: ingest, purgatory, discovery, relayconn, gateway."`

	config.Settings `embed:""`
}

// Run implements the command.
func (r *runs) Run(src *config.Source, command *kong.Context) error {
	services, err := chosen(r.Services)
	if errors.Is(err, errNoServices) {
		return errors.Join(command.PrintUsage(true), err)
	}
	if err != nil {
		return err
	}
	settings, err := r.Complete(src)
	if err != nil {
		return err
	}
	return node.ServeApart(nameOf(services), settings, services...)
}
