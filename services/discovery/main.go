// Command discovery is the service that decides which relay should be asked for what. It needs a
// NATS server that the other services share.
package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/discovery/discovery"
)

func main() { node.Main(node.Service{Name: "discovery", Run: discovery.Run, Asks: true}) }
