package relay

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

const (
	// proofWindow is how far the time of a proof may be from ours, either way (NIP-42 names about
	// ten minutes).
	proofWindow = 10 * time.Minute
	// memberWindow is the same on a private service.
	memberWindow = 2 * time.Minute
	// proofTime is how long a client of a private service has to prove that it is a member, and
	// mostBadProofs how often it may fail.
	proofTime     = 30 * time.Second
	mostBadProofs = 3
	// mostKeys is how many public keys one connection may prove to hold.
	mostKeys = 32
)

// proofs is who the client of one connection has proved to be (NIP-42).
type proofs struct {
	domain    string // address of the service
	window    time.Duration
	challenge string // what the client must sign
	keys      map[string]bool
}

func newProofs(domain string, window time.Duration) *proofs {
	return &proofs{domain: domain, window: window, challenge: rand.Text(), keys: map[string]bool{}}
}

// prove takes a client's answer to the challenge, an event of kind 22242. From then on the client
// holds its author's key. refusal says with NIP-01's prefix why it proves nothing; "": it does.
//
// Where the event names this relay only host and port count, and that the path lies below ours if we
// have one: clients write scheme and path in many ways, and neither leads to another service.
func (p *proofs) prove(ev *nostr.Event, now time.Time) (refusal string) {
	switch {
	case ev.Kind != gonostr.KindClientAuthentication:
		return fmt.Sprintf("invalid: AUTH takes an event of kind %d", gonostr.KindClientAuthentication)
	case !names(ev, "challenge", func(value string) bool { return value == p.challenge }):
		return "invalid: the event does not name the challenge of this connection"
	case !names(ev, "relay", func(value string) bool { return nostr.OnDomain(value, p.domain) }):
		return fmt.Sprintf("invalid: the event does not name this relay, %s", p.domain)
	case ev.CreatedAt.Time().Before(now.Add(-p.window)) || ev.CreatedAt.Time().After(now.Add(p.window)):
		return fmt.Sprintf("invalid: created_at is more than %d minutes from now", p.window/time.Minute)
	case !nostr.HasID(ev):
		return "invalid: the id does not fit the event"
	case !nostr.Signed(ev):
		return "invalid: the signature does not fit the event"
	}
	if len(p.keys) >= mostKeys && !p.keys[ev.PubKey] {
		return fmt.Sprintf("restricted: at most %d keys are authenticated on one connection", mostKeys)
	}
	p.keys[ev.PubKey] = true
	return ""
}

// names reports whether an event has a tag of that name whose value is right.
func names(ev *nostr.Event, name string, right func(value string) bool) bool {
	for _, tag := range ev.Tags {
		if len(tag) > 1 && tag[0] == name && right(tag[1]) {
			return true
		}
	}
	return false
}

// challenge tells the client what to sign (NIP-42), once a connection. It goes to clients that need
// it: many ask their user at every challenge, and most never publish what needs one.
func (c *connection) challenge() {
	if !c.asked {
		c.asked = true
		c.say("AUTH", c.proofs.challenge)
	}
}

// authenticate takes the client's answer to the challenge (NIP-42). It counts as an event: to check
// it costs as much. On a private service a key that is no member's ends the connection.
func (c *connection) authenticate(m message) {
	refusal := c.tooFast()
	if refusal == "" {
		refusal = c.proofs.prove(m.event, time.Now())
	}
	stranger := false
	if refusal == "" {
		// The keys are told before it is looked whether they are members': who removes one looks for its
		// connections after that.
		keys := slices.Collect(maps.Keys(c.proofs.keys))
		c.proved.Store(&keys)
		if stranger = c.isStranger(); stranger {
			refusal = "restricted: this service is for its members"
		}
	}
	c.say("OK", m.id, refusal == "", refusal)
	c.countProof(refusal == "", stranger)
}

// countProof ends the connection of a client of a private service that fails too often, or that has
// proved to be a stranger.
func (c *connection) countProof(good, stranger bool) {
	if !c.relay.Circle.IsPrivate() {
		return
	}
	if c.badProofs++; good {
		c.badProofs = 0
		if c.late != nil { // it is there unless the service has just become private
			c.late.Stop()
		}
	}
	if stranger || c.badProofs >= mostBadProofs {
		c.end(websocket.StatusPolicyViolation, "restricted: this service is for its members")
	}
}

// isStranger reports whether one of the keys that the client has proved to hold is no member's of a
// private service, or not any more.
func (c *connection) isStranger() bool {
	keys := c.proved.Load()
	return keys != nil && c.relay.Circle.IsPrivate() &&
		slices.ContainsFunc(*keys, func(key string) bool { return !c.relay.Circle.Has(key) })
}

// disconnectStrangers ends the connections of those that are no members any more.
func (r *Relay) disconnectStrangers() {
	for _, c := range r.all() {
		if c.isStranger() {
			c.end(websocket.StatusPolicyViolation, "restricted: this service is for its members")
		}
	}
}

const authRequired = "auth-required: "

// admitted is a connection whose client may do what it asks for. What reads or writes events is a
// method of it, and only admit makes one.
type admitted struct{ *connection }

// admit reports whether the client may do what a message asks for: on a private service members
// alone may do anything, and elsewhere some messages need a key of any kind.
func (c *connection) admit(m message) (admitted, bool) {
	proved := c.proved.Load() != nil
	if c.relay.Circle.IsPrivate() {
		return admitted{c}, proved && !c.isStranger()
	}
	needs := false
	switch m.verb {
	case "EVENT":
		needs = c.relay.Limits.AuthToWrite()
	case "REQ", "COUNT", "NEG-OPEN":
		needs = c.relay.Limits.AuthToRead()
	}
	return admitted{c}, proved || !needs
}

// turnAway answers a message of a client that is not admitted.
func (c *connection) turnAway(m message) {
	const why = authRequired + "authenticate (NIP-42) first"
	switch m.verb {
	case "EVENT", "REQ", "COUNT", "NEG-OPEN":
		c.challenge()
		c.refuse(m, "auth_required", why)
	default:
		c.say("NOTICE", why)
	}
}
