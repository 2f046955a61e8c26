package gateway

import (
	"log/slog"
	"syscall"

	"tendril.dev/services/gateway/relay"
)

const (
	// ownDescriptors is how many file descriptors the process keeps at least for itself: the index,
	// the embedded NATS server, connections to relays and git servers, git processes. Of a higher
	// limit it keeps a quarter.
	ownDescriptors = 400
	// requestDescriptors is how many a request of git or a page may take besides a WebSocket's one:
	// its connection, and both ends of the one on which it is passed on to the worker of its shard.
	requestDescriptors = 3
	// leastOthers is how many connections for git and pages there are at least.
	leastOthers = 16
)

// fitConnections lowers how many connections the front door takes to what the limit of file
// descriptors allows. Without that the process would accept connections until nothing can be opened
// any more: no git process, no file of the index, no connection of any client. Go itself raises the
// soft limit to the hard one when a program starts.
func fitConnections(limits relay.Limits, log *slog.Logger) relay.Limits {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("the limit of file descriptors is not known", "error", err)
		return limits
	}
	wanted := limits.MaxConnections
	limits.MaxConnections, limits.OtherConnections = connectionsWithin(uint64(limit.Cur), wanted, limits.OtherConnections)
	if limits.MaxConnections < wanted {
		log.Warn("the limit of file descriptors allows fewer WebSocket connections than NGIT_MAX_CONNECTIONS",
			"descriptors", limit.Cur, "wanted", wanted, "connections", limits.MaxConnections)
	}
	return limits
}

// connectionsWithin is how many of the wanted WebSockets and other connections a limit of file
// descriptors allows. Where they do not fit, a quarter of what is left is for the others, which are
// those of git and of pages.
func connectionsWithin(limit uint64, sockets, others int) (fewerSockets, fewerOthers int) {
	const enough = 1 << 30
	all := int(min(limit, enough))
	left := max(0, all-max(ownDescriptors, all/4))
	if sockets+others*requestDescriptors <= left {
		return sockets, others
	}
	others = min(others, max(leastOthers, left/4/requestDescriptors))
	return max(1, min(sockets, left-others*requestDescriptors)), others
}
