package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/purgatory/purgatory"
)

func main() { node.Main(node.Service{Name: "purgatory", Run: purgatory.Run, Asks: true}) }
