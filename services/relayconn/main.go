package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/relayconn/worker"
)

func main() { node.Main(node.Service{Name: "relayconn", Run: worker.Run, Asks: true}) }
