package node

import "sync"

// FrontDoor is the name under which the front door announces its URL.
const FrontDoor = "front door"

// addresses is where the services of a process listen.
type addresses struct {
	mu    sync.Mutex
	named map[string]string
}

// Announce says that name is served at url from now on. A configured port 0 is any port: only who
// listens knows which.
func (n *Node) Announce(name, url string) {
	n.addresses.mu.Lock()
	defer n.addresses.mu.Unlock()
	if n.addresses.named == nil {
		n.addresses.named = map[string]string{}
	}
	n.addresses.named[name] = url
}

// Announced is the URL that was announced under name; empty if none was yet.
func (n *Node) Announced(name string) string {
	n.addresses.mu.Lock()
	defer n.addresses.mu.Unlock()
	return n.addresses.named[name]
}
