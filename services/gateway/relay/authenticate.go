package relay

import (
	"crypto/rand"
	"fmt"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

const (
	// proofWindow is how far the time of a proof may be from ours, either way (NIP-42 names about
	// ten minutes).
	proofWindow = 10 * time.Minute
	// mostKeys is how many public keys one connection may prove to hold.
	mostKeys = 32
)

// proofs is who the client of one connection has proved to be (NIP-42).
type proofs struct {
	domain    string // of the service: host, and port if it is not a default one
	challenge string // what the client must sign
	keys      map[string]bool
}

func newProofs(domain string) *proofs {
	return &proofs{domain: domain, challenge: rand.Text(), keys: map[string]bool{}}
}

// prove takes a client's answer to the challenge, an event of kind 22242. From then on the client
// holds its author's key. refusal says with NIP-01's prefix why it proves nothing; "": it does.
//
// Where the event names this relay only host and port count: clients write scheme and path in many
// ways, and neither leads to another service.
func (p *proofs) prove(ev *nostr.Event, now time.Time) (refusal string) {
	switch {
	case ev.Kind != gonostr.KindClientAuthentication:
		return fmt.Sprintf("invalid: AUTH takes an event of kind %d", gonostr.KindClientAuthentication)
	case !names(ev, "challenge", func(value string) bool { return value == p.challenge }):
		return "invalid: the event does not name the challenge of this connection"
	case !names(ev, "relay", func(value string) bool { return nostr.OnDomain(value, p.domain) }):
		return fmt.Sprintf("invalid: the event does not name this relay, %s", p.domain)
	case ev.CreatedAt.Time().Before(now.Add(-proofWindow)) || ev.CreatedAt.Time().After(now.Add(proofWindow)):
		return fmt.Sprintf("invalid: created_at is more than %d minutes from now", proofWindow/time.Minute)
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
// it costs as much.
func (c *connection) authenticate(m message) {
	refusal := c.tooFast()
	if refusal == "" {
		refusal = c.proofs.prove(m.event, time.Now())
	}
	c.say("OK", m.id, refusal == "", refusal)
}

const authRequired = "auth-required: "

// unauthenticated reports whether only clients may send a message who have authenticated, where
// this one has not.
func (c *connection) unauthenticated(m message) bool {
	if len(c.proofs.keys) > 0 {
		return false
	}
	switch m.verb {
	case "EVENT":
		return c.relay.Limits.AuthToWrite()
	case "REQ", "COUNT", "NEG-OPEN":
		return c.relay.Limits.AuthToRead()
	}
	return false
}
