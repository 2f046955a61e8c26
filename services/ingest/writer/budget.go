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

// afford makes those who bring an event pay for it, if it will be stored, or refuses it. A refusal
// is not remembered: the event is welcome when the budget is free again.
func (t *term) afford(c *policy.Candidate, d policy.Decision) policy.Decision {
	charges, bytes := t.charges(c), int64(len(c.Raw))
	if len(charges) == 0 || d.Outcome != proto.Accepted && d.Outcome != proto.HeldBack {
		return d
	}
	full := t.Marks.Full() != ""
	left, party, free := t.Usage.Left(1, charges...)
	if (full || bytes > left) && t.policy.OfServed(t.draft, c.Event) {
		full = false
		left, party, free = t.Usage.Left(ofServed, charges...)
	}
	switch {
	case bytes > left:
		return policy.Decision{Outcome: proto.Rejected, Reason: "over_budget", RetryAt: free,
			Message: fmt.Sprintf("rate-limited: this %s has stored as much as it may today; it may store more from %s on",
				party.Kind, free.Format(time.RFC3339))}
	case full:
		return policy.Decision{Outcome: proto.Rejected, Reason: "full", RetryAt: time.Now().Add(fullAgain).UTC(),
			Message: "error: this service is full"}
	}
	t.Usage.Add(bytes, charges...)
	return d
}
