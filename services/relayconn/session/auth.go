package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"tendril.dev/services/relayconn/wire"
)

// auth is how far we have come with a relay that wants to know who reads (NIP-42): it is told once
// a connection, and asked again for what it refused before.
type auth struct {
	challenge string
	needed    time.Time // since; zero: nothing was refused
	told      bool
	keyless   bool // there is no key to tell it with
}

// prove answers the relay's challenge, if it has refused something and we have not yet.
func (s *Session) prove(ctx context.Context) error {
	a := &s.auth
	if a.needed.IsZero() || a.told || a.challenge == "" || s.Authenticate == nil {
		return nil
	}
	a.told = true
	err := s.Authenticate(ctx, a.challenge)
	if errors.Is(err, fs.ErrNotExist) {
		a.keyless = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("authenticate to the relay: %w", err)
	}
	s.Log.Debug("authenticating to the relay (NIP-42)")
	return nil
}

// unproved takes in that the relay refuses something to those who have not authenticated.
func (s *Session) unproved(ctx context.Context, reason string, now time.Time) error {
	if s.auth.needed.IsZero() {
		s.auth.needed = now
	}
	if err := s.prove(ctx); err != nil {
		return err
	}
	if s.Authenticate == nil || s.auth.keyless || now.Sub(s.auth.needed) >= wire.ProofWait {
		s.warn("auth", "the relay requires authentication (NIP-42) and does not accept ours: events that it keeps for others do not come. "+
			"The key is the operator's, which each worker needs (NGIT_RELAY_OWNER_NSEC)", "reason", reason)
	}
	return nil
}
