package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/discovery/discovery"
)

func main() { node.Main(node.Service{Name: "discovery", Run: discovery.Run, Asks: true}) }
