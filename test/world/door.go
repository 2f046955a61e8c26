package world

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Door is a front door of a Tendril, wherever that runs.
type Door struct {
	URL    string // http://host:port
	Domain string // what the Tendril calls itself
	tb     testing.TB
}

// At is the front door at a URL of a Tendril with [fixture.Domain].
func At(t testing.TB, url string) Door { return Door{url, fixture.Domain, t} }

// Person makes a person whose repositories are here.
func (d Door) Person() *fixture.Person { return fixture.NewPerson().On(d.Domain) }

// Relay is the WebSocket URL.
func (d Door) Relay() string { return RelayAt(d.URL) }

// RelayAt is the WebSocket URL of what is at an HTTP URL.
func RelayAt(url string) string { return "ws" + strings.TrimPrefix(url, "http") }

// Repo is where git finds a repository.
func (d Door) Repo(owner *fixture.Person, identifier string) string {
	return d.URL + nostr.RepositoryURLPath(owner.Npub, identifier)
}

// Dial opens a socket.
func (d Door) Dial() *Socket { return DialFrom(d.tb, d.Relay(), "") }

// Fetch returns what is served for a filter.
func (d Door) Fetch(f nostr.Filter) []*nostr.Event {
	d.tb.Helper()
	s := d.Dial()
	defer s.Close()
	events, err := s.Query(f)
	must(d.tb, err)
	return events
}

// Has reports whether an event is served.
func (d Door) Has(ev *nostr.Event) bool {
	d.tb.Helper()
	return len(d.Fetch(nostr.Filter{IDs: []string{ev.ID}})) == 1
}

// Serves waits until events are served, as they were signed.
func (d Door) Serves(events ...*nostr.Event) {
	d.tb.Helper()
	s := d.Dial()
	defer s.Close()
	for _, ev := range events {
		await(d.tb, fmt.Sprintf("an event of kind %d is served: %s", ev.Kind, ev), func() bool {
			got, err := s.Query(nostr.Filter{IDs: []string{ev.ID}})
			if err != nil || len(got) == 1 && got[0].String() != ev.String() {
				d.tb.Fatalf("served %s, %v; want %s", got, err, ev)
			}
			return len(got) == 1
		})
	}
}

// Submit sends an event as a user does, on a connection of its own, and gives what the OK says.
func (d Door) Submit(ev *nostr.Event) (ok bool, message string) {
	d.tb.Helper()
	s := d.Dial()
	defer s.Close()
	return s.Submit(ev)
}

// Accepts submits events that must be accepted.
func (d Door) Accepts(events ...*nostr.Event) { d.tb.Helper(); d.answers(true, "", events) }

// Waits is how an event is answered that waits for git data.
const Waits = "purgatory: won't be served until git data arrives"

// Holds submits events that must wait for git data.
func (d Door) Holds(events ...*nostr.Event) { d.tb.Helper(); d.answers(true, Waits, events) }

// Refuses submits an event that must be refused with a message that begins so.
func (d Door) Refuses(message string, ev *nostr.Event) {
	d.tb.Helper()
	d.answers(false, message, []*nostr.Event{ev})
}

func (d Door) answers(want bool, message string, events []*nostr.Event) {
	d.tb.Helper()
	for _, ev := range events {
		if ok, said := d.Submit(ev); ok != want || !strings.HasPrefix(said, message) {
			d.tb.Fatalf("kind %d is answered %v %q, want %v %q", ev.Kind, ok, said, want, message)
		}
	}
}

// ErrHungUp is what TrySubmit says when the connection ended before the OK.
var ErrHungUp = errors.New("the connection ended")

// TrySubmit is Submit for a relay that may die at any moment. An error is [ErrHungUp], or why the
// event was refused.
func (d Door) TrySubmit(ev *nostr.Event) error {
	s, err := TryDial(d.tb, d.Relay())
	if err != nil {
		return ErrHungUp
	}
	defer s.Close()
	ok, message, err := s.TrySubmit(ev)
	switch {
	case err != nil:
		return ErrHungUp
	case !ok:
		return errors.New(message)
	}
	return nil
}

// Count asks how many events match (NIP-45): where the relay does not count so far, which ours does
// not of 100,000 and more, in smaller pieces of time.
func (d Door) Count(filter nostr.Filter) int {
	d.tb.Helper()
	s := d.Dial()
	defer s.Close()
	s.Send("COUNT", "n", filter)
	m := s.Next()
	if m[0] != "COUNT" {
		d.tb.Fatalf("COUNT is answered %v", m)
	}
	answer := m[2].(map[string]any)
	if approximate, _ := answer["approximate"].(bool); !approximate {
		return int(answer["count"].(float64))
	}
	from, to := nostr.Timestamp(0), nostr.Timestamp(1<<32)
	if filter.Since != nil {
		from, to = *filter.Since, *filter.Until
	}
	if from == to {
		d.tb.Fatalf("more events of one second match %v than the relay counts", filter)
	}
	middle := from + (to-from)/2
	after := middle + 1
	older, newer := filter, filter
	older.Since, older.Until = &from, &middle
	newer.Since, newer.Until = &after, &to
	return d.Count(older) + d.Count(newer)
}
