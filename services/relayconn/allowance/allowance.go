// Package allowance knows how much a relay lets us ask: until when it wants quiet, and what it
// means by what it says when we ask too much (spec/sync.md, Historic sync).
package allowance

import (
	"slices"
	"strings"
	"time"
)

// Allowance is how much a relay lets us ask on one connection.
type Allowance struct {
	cooldown time.Duration
	until    time.Time // no request before; zero: the relay has never wanted quiet
}

// New returns the allowance of a relay that has complained of nothing yet. cooldown is how long it
// is left alone when it wants quiet.
func New(cooldown time.Duration) *Allowance { return &Allowance{cooldown: cooldown} }

// Quieten notes that the relay wants quiet from now on.
func (a *Allowance) Quieten(now time.Time) { a.until = now.Add(a.cooldown) }

// Quiet reports whether nothing may be asked now.
func (a *Allowance) Quiet(now time.Time) bool { return now.Before(a.until) }

// QuietAfter reports whether the relay wanted quiet at that time or later.
func (a *Allowance) QuietAfter(t time.Time) bool { return a.until.After(t) }

// Until is when the quiet that the relay wanted last ends; zero: it has never wanted any.
func (a *Allowance) Until() time.Time { return a.until }

// Cooldown is how long a relay is left alone that wants quiet.
func (a *Allowance) Cooldown() time.Duration { return a.cooldown }

// WantsQuiet reports whether a relay says that we ask too much. NIP-01 has a prefix for it; many
// relays have words of their own.
func WantsQuiet(text string) bool {
	return says(text, "rate-limit", "rate limit", "too many requests", "too fast", "slow down")
}

// WantsFewer reports whether a relay says that we have too many subscriptions open.
func WantsFewer(text string) bool {
	return says(text, "too many concurrent", "too many subscriptions")
}

// WantsSmaller reports whether a relay says that one subscription asks for too much.
func WantsSmaller(text string) bool { return says(text, "filter", "too large", "too big") }

func says(text string, phrases ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(text, phrase) })
}
