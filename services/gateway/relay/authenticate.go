package relay

import (
	"time"

	"tendril.dev/services/gateway/message"
)

// challenge tells the client what to sign (NIP-42), once a connection. It goes to clients that need
// it: many ask their user at every challenge, and most never publish what needs one.
func (c *connection) challenge() {
	if !c.asked.Swap(true) {
		c.say(message.Challenge(c.auth.Challenge()))
	}
}

// authenticate takes the client's answer to the challenge (NIP-42). It counts as an event: to check
// it costs as much.
func (c *connection) authenticate(m message.Auth) {
	refusal := c.tooFast()
	if refusal == "" {
		refusal = c.auth.Prove(m.Event, time.Now())
	}
	c.say(message.OK(m.Event.ID, refusal == "", refusal))
}

// What a client is told that must authenticate before it may do what it asked for.
const (
	authRequired = "auth-required: "
	authToRead   = authRequired + "authenticate (NIP-42) to read from this relay"
	authToWrite  = authRequired + "authenticate (NIP-42) to publish to this relay"
)

// unauthenticated is the answer to a message that only clients may send who have authenticated,
// where this one has not; nil: it may send it.
func (c *connection) unauthenticated(m message.Message) (answer []byte) {
	limits := c.relay.Limits
	read, write := limits.AuthToRead(), limits.AuthToWrite()
	if !read && !write || c.auth.Any() {
		return nil
	}
	switch m := m.(type) {
	case message.Event:
		if write {
			return message.OK(m.Event.ID, false, authToWrite)
		}
	case message.Request:
		if read {
			c.unsubscribe(m.ID)
			return message.Closed(m.ID, authToRead)
		}
	case message.Count:
		if read {
			return message.Closed(m.ID, authToRead)
		}
	case message.NegOpen:
		if read {
			c.negClose(m.ID)
			return message.NegErr(m.ID, authToRead)
		}
	}
	return nil
}
