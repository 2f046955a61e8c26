package main

import (
	"slices"
	"strings"

	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/services/discovery"
	"tendril.dev/services/gateway"
	"tendril.dev/services/ingest"
	"tendril.dev/services/purgatory"
	"tendril.dev/services/relayconn"
)

// services returns all services in the order of their start. They stop in reverse: clients and
// other relays first, and ingest last, because what the others finish needs its decision.
func services() []node.Service {
	return []node.Service{
		{Name: "ingest", Run: ingest.Run, Provisions: true},
		{Name: "purgatory", Run: purgatory.Run, Asks: true},
		{Name: "discovery", Run: discovery.Run, Asks: true},
		{Name: "relayconn", Run: relayconn.Run, Asks: true},
		{Name: "gateway", Run: gateway.Run},
	}
}

// serviceName is one argument. (A []string would be one argument with commas, as settings have it.)
type serviceName string

// runs is `tendril run`: one service or several in a process, which meet others on a shared NATS.
type runs struct {
	Services []serviceName `arg:"" name:"service" enum:"ingest,purgatory,discovery,relayconn,gateway" help:"Services to run: ingest, purgatory, discovery, relayconn, gateway."`

	config.Settings `embed:""`
}

// Run implements the command.
func (r *runs) Run(src *config.Source) error {
	settings, err := r.Complete(src)
	if err != nil {
		return err
	}
	name, services := chosen(r.Services)
	return node.Serve(name, settings, true, services...)
}

// chosen returns the named services in the order of [services], and the name of a process that has
// them. Its index has a folder of this name, so that processes with different services may share
// NGIT_RELAY_DATA_PATH.
func chosen(named []serviceName) (name string, chosen []node.Service) {
	var names []string
	for _, s := range services() {
		if slices.Contains(named, serviceName(s.Name)) {
			names, chosen = append(names, s.Name), append(chosen, s)
		}
	}
	return strings.Join(names, "-"), chosen
}
