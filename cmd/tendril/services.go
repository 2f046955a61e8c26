package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/discovery/discovery"
	"tendril.dev/services/gateway/gateway"
	"tendril.dev/services/ingest/ingest"
	"tendril.dev/services/purgatory/purgatory"
	"tendril.dev/services/relayconn/relayconn"
)

// services gives all services in the order of their start. They stop in reverse: clients and other relays first, and ingest last, because
// what the others finish needs its decision.
func services() []node.Service {
	return []node.Service{
		{Name: "ingest", Run: ingest.Run},
		{Name: "purgatory", Run: purgatory.Run},
		{Name: "discovery", Run: discovery.Run},
		{Name: "relayconn", Run: relayconn.Run},
		{Name: "gateway", Run: gateway.Run},
	}
}
