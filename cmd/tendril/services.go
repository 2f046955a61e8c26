package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tendril.dev/lib/node"
	"tendril.dev/services/discovery/discovery"
	"tendril.dev/services/gateway/gateway"
	"tendril.dev/services/ingest/ingest"
	"tendril.dev/services/purgatory/purgatory"
	"tendril.dev/services/relayconn/worker"
)

// services returns all services in the order of their start. They stop in reverse: clients and
// other relays first, and ingest last, because what the others finish needs its decision.
func services() []node.Service {
	return []node.Service{
		{Name: "ingest", Run: ingest.Run, Provisions: true},
		{Name: "purgatory", Run: purgatory.Run, Asks: true},
		{Name: "discovery", Run: discovery.Run, Asks: true},
		{Name: "relayconn", Run: worker.Run, Asks: true},
		{Name: "gateway", Run: gateway.Run},
	}
}

// errNoServices is for `tendril run` without names.
var errNoServices = errors.New("no service is named")

// chosen returns the named services in the order of [services]. The error is a sentence for the
// operator.
func chosen(names []serviceName) ([]node.Service, error) {
	all := services()
	var known []string
	for _, s := range all {
		known = append(known, s.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w; want one or several of %s", errNoServices, strings.Join(known, ", "))
	}
	wanted := map[string]bool{}
	for _, named := range names {
		switch name := string(named); {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("%.100q is no service; want one or several of %s", name, strings.Join(known, ", "))
		case wanted[name]:
			return nil, fmt.Errorf("%q is named twice; want each of %s once at most", name, strings.Join(known, ", "))
		}
		wanted[string(named)] = true
	}
	return slices.DeleteFunc(all, func(s node.Service) bool { return !wanted[s.Name] }), nil
}

// nameOf is the name of a process with these services. Its index has a folder of this name, so that
// processes with different services may share NGIT_RELAY_DATA_PATH.
func nameOf(services []node.Service) string {
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
	}
	return strings.Join(names, "-")
}
