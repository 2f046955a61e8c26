package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/ingest/ingest"
)

func main() { node.Main(node.Service{Name: "ingest", Run: ingest.Run, Provisions: true}) }
