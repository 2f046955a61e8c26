package writer

import (
	"fmt"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// Budgets bound what is stored. The zero value bounds nothing.
type Budgets struct {
	Usage *limit.Usage
	Marks *limit.Marks

	Author, Address, Relay int64           // bytes a day; 0: any amount
	Bootstrap              map[string]bool // relays that have ten times as much
}

// ofServed multiplies the budgets of owners and maintainers for the events of their repositories,
// and those of bootstrap relays.
const ofServed = 10

// fullAgain is when an event is offered again that came while the service was full.
const fullAgain = 5 * time.Minute

// charges are those who pay for an event. What an operator imports and what leaves purgatory is
// free.
func (l *Budgets) charges(c *policy.Candidate) (charges []limit.Charge) {
	if c.Lane == proto.LaneRelease || c.Source == proto.SourceImport {
		return nil
	}
	add := func(kind, name string, most int64) {
		if name != "" {
			charges = append(charges, limit.Charge{Party: limit.Party{What: limit.Events, Kind: kind, Name: name}, Most: most})
		}
	}
	relay := l.Relay
	if l.Bootstrap[c.Relay] {
		relay *= ofServed
	}
	add(limit.Author, c.Event.PubKey, l.Author)
	add(limit.ClientAddress, c.Client, l.Address)
	add(limit.Relay, c.Relay, relay)
	return charges
}

// afford makes those who bring an event pay for it, if it will be stored, or refuses it. A refusal
// is not remembered: the event is welcome when the budget is free again.
func (t *term) afford(c *policy.Candidate, d policy.Decision) policy.Decision {
	stored := d.Outcome == proto.Accepted || d.Outcome == proto.HeldBack
	l := &t.Budgets
	charges := l.charges(c)
	if !stored || l.Usage == nil || len(charges) == 0 {
		return d
	}
	bytes := int64(len(c.Raw))
	full := l.Marks.Full() != ""
	party, free, over := l.Usage.Over(bytes, 1, charges...)
	if (full || over) && t.Policy.OfServed(t.draft, c.Event) {
		full = false
		party, free, over = l.Usage.Over(bytes, ofServed, charges...)
	}
	refused := policy.Decision{Outcome: proto.Rejected}
	switch {
	case over:
		refused.Reason, refused.RetryAt = "over_budget", free
		refused.Message = fmt.Sprintf("rate-limited: this %s has stored as much as it may today; it may store more from %s on",
			party.Kind, free.Format(time.RFC3339))
		return refused
	case full:
		refused.Reason, refused.RetryAt = "full", time.Now().Add(fullAgain).UTC()
		refused.Message = "error: this service is full"
		return refused
	}
	l.Usage.Add(bytes, charges...)
	return d
}
