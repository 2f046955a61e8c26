package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/node"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

// lookAround is how often the greeting looks whether everything is ready.
const lookAround = 50 * time.Millisecond

// greeting tells the operator where everything is, once it is ready, and that the process stops. It
// starts last, so it is the first to stop.
func greeting(out io.Writer) node.Service {
	return node.Service{Name: "greeting", Run: func(ctx context.Context, n *node.Node) error {
		for len(n.Ready.Failing()) > 0 || n.Announced(node.FrontDoor) == "" {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(lookAround):
			}
		}
		fmt.Fprint(out, welcome(n))
		<-ctx.Done()
		fmt.Fprintln(out, "stopping")
		return nil
	}}
}

// welcome is what is printed once everything is ready. Its first line is stable: scripts wait for
// it and read the address.
func welcome(n *node.Node) string {
	s, door := n.Settings, n.Announced(node.FrontDoor)
	var b strings.Builder
	fmt.Fprintf(&b, "listening on %s\n", door)
	line := func(what, where string) { fmt.Fprintf(&b, "  %-8s %s\n", what, where) }
	line("relay", "ws"+strings.TrimPrefix(door, "http")+" (announced as "+s.Domain+")")
	line("git", door+"/<npub>/<identifier>.git")
	switch {
	case s.NATSURL != "":
		line("NATS", bus.Redacted(s.NATSURL))
	case n.Bus.ClientURL() != "":
		command := "nats sub 'grasp.>' -s " + n.Bus.ClientURL()
		if s.NATSPassword != "" {
			command += " --user=" + proto.UserOperator + " --password=…"
		}
		line("NATS", n.Bus.ClientURL()+" ("+command+")")
	default:
		line("NATS", "embedded, listening nowhere (NGIT_NATS_LISTEN)")
	}
	if s.DatabaseBackend == "memory" {
		line("data", "events in memory, git in "+s.GitDataPath)
	} else {
		line("data", "events in "+s.RelayDataPath+", git in "+s.GitDataPath)
	}
	line("version", obs.Version())
	return b.String()
}
