// Package gateway is the front door: a nostr relay, git by smart HTTP, and web pages on one port.
// Any number of replicas may run. Each answers from its own index of the log.
//
// A connection first passes the listener of package gateway: it bounds the connections of each
// client address and closes idle ones for new ones, and a client has a time to take each part of an
// answer. The door then works out the client's address behind trusted proxies, sets the headers of
// CORS, counts the request, and sends it to one of three parts:
//
//   - Package relay, if it opens a WebSocket. Each message is parsed and becomes one of four things.
//     An EVENT is checked, offered to ingest on the user lane, and answered with the verdict once the
//     index has the event. A REQ joins the hub, which brings live events, reads the index at one
//     sequence of the log, and goes on with what the hub has after it. A COUNT and a session of
//     NIP-77 only read the index. What clients share (the processors, memory, large messages, open
//     questions) is divided by their addresses with lib/limit.
//   - Package git, if the path is that of a repository and a git service. It finds the purgatory
//     worker that holds the shard and passes the request on. Where there is none, the request waits.
//   - Package pages otherwise: the relay information document (NIP-11) and pages from the index. It
//     asks the worker about a repository whose announcement is held.
//
// At a stop the relay answers the events that it has read and closes its sockets with 1001, HTTP
// connections end with the request that comes next, and what is too slow is cut off.
package gateway
