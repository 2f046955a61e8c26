package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/gateway/gateway"
)

func main() {
	node.Main(node.Service{Name: "gateway", Run: gateway.Run})
}
