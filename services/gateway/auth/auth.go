// Package auth knows who a client of the relay has proved to be (NIP-42).
package auth

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

const (
	// window is how far the time of a proof may be from ours, either way (NIP-42 names about ten
	// minutes).
	window = 10 * time.Minute
	// MostKeys is how many public keys one connection may prove to hold.
	MostKeys = 32
)

// Session is what one connection has proved. Its methods may be called from several goroutines.
type Session struct {
	domain    string
	challenge string

	mu   sync.Mutex
	keys map[string]struct{}
}

// New begins a session with a service of that domain (host, and port if it is not a default one),
// with a challenge of its own.
func New(domain string) *Session {
	return &Session{domain: domain, challenge: rand.Text()}
}

// Challenge is what the client must sign.
func (s *Session) Challenge() string { return s.challenge }

// Prove takes a client's answer to the challenge, an event of kind 22242. From then on the session
// holds its author's key. refusal says with NIP-01's prefix why it proves nothing; "": it does.
//
// Where the event names this relay only host and port count: clients write scheme and path in many
// ways, and neither leads to another service.
func (s *Session) Prove(ev *nostr.Event, now time.Time) (refusal string) {
	switch {
	case ev.Kind != gonostr.KindClientAuthentication:
		return fmt.Sprintf("invalid: AUTH takes an event of kind %d", gonostr.KindClientAuthentication)
	case !names(ev, "challenge", func(value string) bool { return value == s.challenge }):
		return "invalid: the event does not name the challenge of this connection"
	case !names(ev, "relay", func(value string) bool { return nostr.OnDomain(value, s.domain) }):
		return fmt.Sprintf("invalid: the event does not name this relay, %s", s.domain)
	case ev.CreatedAt.Time().Before(now.Add(-window)) || ev.CreatedAt.Time().After(now.Add(window)):
		return fmt.Sprintf("invalid: created_at is more than %d minutes from now", window/time.Minute)
	case !nostr.HasID(ev):
		return "invalid: the id does not fit the event"
	case !nostr.Signed(ev):
		return "invalid: the signature does not fit the event"
	}
	return s.hold(ev.PubKey)
}

// hold notes a key.
func (s *Session) hold(key string) (refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.keys[key]; held {
		return ""
	}
	if len(s.keys) >= MostKeys {
		return fmt.Sprintf("restricted: at most %d keys are authenticated on one connection", MostKeys)
	}
	if s.keys == nil {
		s.keys = map[string]struct{}{}
	}
	s.keys[key] = struct{}{}
	return ""
}

// Holds reports whether the client has proved to hold a public key, 64 hex digits.
func (s *Session) Holds(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, held := s.keys[key]
	return held
}

// Any reports whether the client has proved to hold any key.
func (s *Session) Any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) > 0
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
