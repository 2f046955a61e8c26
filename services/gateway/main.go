// Command gateway is the front door: nostr relay, git smart HTTP and web pages on one port
// (docs/architecture.md).
package main

import (
	"tendril.dev/lib/node"
	"tendril.dev/services/gateway/gateway"
)

func main() {
	node.Main(node.Service{Name: "gateway", Run: gateway.Run})
}
