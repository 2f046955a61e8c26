package session

import (
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/history"
)

// Connection is where a connection stands (docs/architecture.md, How things flow), with the values
// of `ngit_sync_relay_connected`.
type Connection int

// The states.
const (
	Disconnected Connection = iota
	Connecting
	Syncing
	Connected
	Incomplete // connected_historic_sync_failures
)

// String is the state's name.
func (c Connection) String() string {
	return [...]string{"disconnected", "connecting", "syncing", "connected", "connected_historic_sync_failures"}[c]
}

// Status is how the session stands.
type Status struct {
	Connection    Connection
	Repos, Roots  int // confirmed
	Subscriptions int // open
	// Confirmed is the revision of the target of which everything was asked for and came; 0: none
	// yet.
	Confirmed uint64
	// CaughtUp: what a start asks for has come, and nothing is Missing. A next start need
	// not go further back than this connection.
	CaughtUp bool
	// Missing is since when what comes live is not all there, because the relay closed a live
	// subscription, or because there was no verdict; zero: it is all there.
	Missing time.Time
	// Answered: the relay has sent an EOSE on this connection.
	Answered bool
	// Days counts the daily fresh starts.
	Days int
	// Limited is until when the relay wants quiet.
	Limited time.Time
}

// Observer hears what a session does. Its methods are called from several goroutines and must not
// block.
type Observer interface {
	Status(Status)
	// Judged is called for every event of this relay that was new to the service. A gap is one that
	// should have come live before.
	Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict)
}

// connection is where the connection stands now.
func (s *Session) connection(now time.Time) Connection {
	past := s.past.Standing()
	if past.Working || !s.due.items.Empty() {
		s.quietSince = time.Time{}
		return Syncing
	}
	if s.quietSince.IsZero() {
		s.quietSince = now
	}
	switch {
	case now.Before(s.settledAt()):
		return Syncing
	case past.Failed || s.live.GaveUp():
		return Incomplete
	}
	return Connected
}

// settledAt is when the state is no longer syncing if nothing happens; zero: something is pending.
func (s *Session) settledAt() time.Time {
	if s.quietSince.IsZero() {
		return s.quietSince
	}
	return s.quietSince.Add(s.Rules.Settle)
}

// report tells the observer of a status that is not the one told before.
func (s *Session) report(c Connection) {
	revision, past := s.status.Confirmed, s.past.Standing()
	if s.wanted.Revision != 0 && s.due.items.Empty() && past.Complete {
		revision = s.wanted.Revision
		s.past.ConfirmWanted()
	}
	confirmed := s.past.Confirmed()
	missing := history.Earlier(history.Earlier(s.live.Missing(), past.Missing), s.inflight.Missing())
	st := Status{
		Connection: c, Repos: confirmed.Repos(), Roots: len(confirmed.Roots), Subscriptions: s.live.Count() + s.past.Open(),
		Confirmed: revision, Missing: missing, Answered: s.answered, Days: s.days, Limited: s.limits.Until(),
	}
	st.CaughtUp = past.CaughtUp && missing.IsZero()
	if st != s.status {
		s.status = st
		s.Observer.Status(st)
	}
}
