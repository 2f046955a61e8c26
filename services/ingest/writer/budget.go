package writer

import (
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// ofServed multiplies the budgets of owners and maintainers for the events of their repositories,
// and those of bootstrap relays.
const ofServed = 10

// fullAgain is when an event is offered again that came while the service was full.
const fullAgain = 5 * time.Minute

// charges are those who pay for an event. What an operator imports and what leaves purgatory is
// free.
func (w *Writer) charges(c *policy.Candidate) (charges []limit.Charge) {
	if c.Lane == proto.LaneRelease || c.Source == proto.SourceImport {
		return nil
	}
	add := func(kind, name string, most int64) {
		if name != "" {
			charges = append(charges, limit.Charge{Party: limit.Party{What: limit.Events, Kind: kind, Name: name}, Most: most})
		}
	}
	relay := w.Settings.DailyRelayBytes
	if slices.Contains(w.bootstrap, nostr.RelayURL(c.Relay)) {
		relay *= ofServed
	}
	add(limit.Author, c.Event.PubKey, w.Settings.DailyAuthorBytes)
	add(limit.ClientAddress, c.Client, w.Settings.DailyAddressBytes)
	add(limit.Relay, c.Relay, relay)
	return charges
}

// rejectedBytes is about what a rejection takes that is remembered, and each key that it misses.
const rejectedBytes = 512

// afford notes who pays for an event that will be stored or passed on, or refuses it. For a
// rejection that is remembered the address or the relay pays. A refusal is not remembered: the
// event is welcome when the budget is free again.
func (t *term) afford(x *decided, d policy.Decision) policy.Decision {
	c := x.candidate
	charges, bytes := t.charges(c), int64(len(c.Raw))
	switch {
	case len(charges) == 0:
		return d
	case d.Outcome == proto.Accepted, d.Outcome == proto.HeldBack, d.Outcome == proto.PassedOn:
	case t.remembers(c, d):
		charges, bytes = charges[1:], int64(rejectedBytes*(1+len(d.Missing)))
	default:
		return d
	}
	full := t.Marks.Full() != "" && d.Outcome != proto.PassedOn // which takes no room
	left, party, free := t.Usage.Left(1, charges...)
	if (full || bytes > left) && t.policy.OfServed(t.draft, c.Event) {
		full = false
		left, party, free = t.Usage.Left(ofServed, charges...)
	}
	switch {
	case bytes > left:
		return policy.Decision{Outcome: proto.Rejected, Reason: "over_budget", RetryAt: free.Unix(),
			Message: fmt.Sprintf(proto.MessageBudget+"%s has stored as much as it may today; it may store more from %s on",
				party.Kind, free.Format(time.RFC3339))}
	case full:
		return policy.Decision{Outcome: proto.Rejected, Reason: "full", RetryAt: time.Now().Add(fullAgain).Unix(),
			Message: proto.MessageFull}
	}
	x.bytes, x.charges = bytes, charges
	return d
}
