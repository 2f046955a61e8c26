// Command purgatory is the service that holds git repositories and hunts the data that held events
// wait for. It needs a NATS server that the other services share, and a git volume that its other
// replicas share.
package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/purgatory/purgatory"
)

func main() { node.Main(node.Service{Name: "purgatory", Run: purgatory.Run, Asks: true}) }
