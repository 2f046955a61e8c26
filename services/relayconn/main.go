// Command relayconn is the service that keeps connections to other relays. It needs a NATS server
// that the other services share.
package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/relayconn/worker"
)

func main() { node.Main(node.Service{Name: "relayconn", Run: worker.Run, Asks: true}) }
