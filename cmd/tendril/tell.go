package main

import (
	"fmt"
	"io"
	"time"

	"tendril.dev/cmd/tendril/importer"
)

// teller tells how far a command is, on standard error.
type teller struct {
	out   io.Writer
	quiet bool
	begun time.Time
	what  string
	next  time.Time
}

func newTeller(out io.Writer, quiet bool) *teller { return &teller{out: out, quiet: quiet} }

// tellEvery is how often progress is printed.
const tellEvery = 5 * time.Second

// progress prints how far something is, every few seconds.
func (t *teller) progress(what string, done, of uint64) {
	if t.quiet {
		return
	}
	if t.what != what {
		t.what, t.begun, t.next = what, time.Now(), time.Now().Add(tellEvery)
	}
	if done%64 != 0 && what != "repositories" {
		return // a look at the clock costs more than all of this
	}
	if now := time.Now(); !now.Before(t.next) {
		t.next = now.Add(tellEvery)
		fmt.Fprintf(t.out, "%s: %d of %d, %.0f a second\n", what, done, of, float64(done)/now.Sub(t.begun).Seconds())
	}
}

// reading prints how many events have come from a relay; how many there are it does not say.
func (t *teller) reading(events int) {
	now := time.Now()
	if t.next.IsZero() {
		t.begun, t.next = now, now.Add(tellEvery)
	}
	if t.quiet || now.Before(t.next) {
		return
	}
	t.next = now.Add(tellEvery)
	fmt.Fprintf(t.out, "from the relay: %d events, %.0f a second\n", events, float64(events)/now.Sub(t.begun).Seconds())
}

// importing prints how far an import is.
func (t *teller) importing(p importer.Progress) {
	now := time.Now()
	if t.next.IsZero() {
		t.next = now.Add(tellEvery)
	}
	if t.quiet || now.Before(t.next) {
		return
	}
	t.next = now.Add(tellEvery)
	c := p.Counts
	fmt.Fprintf(t.out, "%s: %d of %d offered, %.0f a second; %d accepted, %d known, %d refused so far\n",
		p.Stage, p.Offered, p.Of, float64(p.Offered)/max(now.Sub(p.Begun).Seconds(), 0.001), c.Accepted, c.Known, c.Refused)
}

// result prints what came of it.
func (t *teller) result(format string, args ...any) {
	if !t.quiet {
		fmt.Fprintf(t.out, format+"\n", args...)
	}
}
