package session

import (
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
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
	Repos, Roots  int // confirmed whole
	Subscriptions int // open
	// Confirmed says what was wanted of which everything was asked for and came; zero: nothing yet.
	Confirmed Mark
	// CaughtUp: what a start asks for has come, and nothing is Missing. A next start need
	// not go further back than this connection.
	CaughtUp bool
	// Missing is since when what comes live is not all there, because the relay closed a live
	// subscription, or because there is no verdict; zero: it is all there.
	Missing time.Time
	// Reminded: events are asked for again later, by their ids.
	Reminded bool
	// Answered: the relay has sent an EOSE on this connection.
	Answered bool
	// Days counts the daily fresh starts.
	Days int
	// Limited is until when the relay wants quiet.
	Limited time.Time
	// Refused is until when something rests that the relay refuses for good.
	Refused time.Time
}

// Observer hears what a session does. Its methods are called from several goroutines and must not
// block.
type Observer interface {
	Status(Status)
	// Judged is called for every event of this relay that was new to the service. A gap is one that
	// should have come live before.
	Judged(ev *nostr.Event, source proto.Source, gap bool, v proto.Verdict)
	// NotTaken is called for every message or event of the relay that ingest did not get, or rejected.
	NotTaken(reason string)
	// Refused is called for every request that the relay refused for good; see [wire.PolicyCategory].
	Refused(category string)
}

// connection is where the connection stands now.
func (s *Session) connection(now time.Time) Connection {
	past := s.history.standing()
	if past.working || !s.due.items.Empty() {
		s.quietSince = time.Time{}
		return Syncing
	}
	if s.quietSince.IsZero() {
		s.quietSince = now
	}
	switch {
	case now.Before(s.quietUntil()):
		return Syncing
	case past.failed:
		return Incomplete
	}
	return Connected
}

// quietUntil is when the state is no longer syncing if nothing happens; zero: something is pending.
func (s *Session) quietUntil() time.Time {
	if s.quietSince.IsZero() {
		return s.quietSince
	}
	return s.quietSince.Add(s.Rules.Calm)
}

// report tells the observer of a status that is not the one told before.
func (s *Session) report(c Connection) {
	mark, past, confirmed := s.status.Confirmed, s.history.standing(), s.history.confirmed
	if s.wanted.Mark != (Mark{}) { // else it is not known yet what is wanted
		switch above, all := s.history.allConfirmed(); {
		case all:
			mark = s.wanted.Mark
		case above:
			mark = s.wanted.Mark.above(mark)
		}
	}
	missing := earlier(past.missing, s.live.missingSince())
	lives, open := s.governor.count()
	st := Status{
		Connection: c, Repos: len(confirmed.Full), Roots: len(confirmed.Roots), Subscriptions: lives + open,
		Confirmed: mark, CaughtUp: past.caughtUp && missing.IsZero(), Missing: missing,
		Reminded: !s.Reminders.first.IsZero(), Answered: s.governor.answered, Days: s.days, Limited: s.governor.pausedUntil, Refused: s.governor.limitedUntil,
	}
	if st != s.status {
		s.status = st
		s.Observer.Status(st)
	}
}

// earlier returns the earlier of two moments. The zero time is no moment.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two moments.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
