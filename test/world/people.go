package world

import (
	"context"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
)

// Person has a key and signs events.
type Person struct {
	*outside.Person
	t testing.TB
}

// NewPerson makes a person with a key of their own.
func NewPerson(t testing.TB) *Person {
	t.Helper()
	p, err := outside.NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	return Acquaint(t, p)
}

// Acquaint lets a person act in a test.
func Acquaint(t testing.TB, p *outside.Person) *Person { return &Person{p, t} }

// Sign makes an event of now.
func (p *Person) Sign(kind int, content string, tags ...nostr.Tag) *nostr.Event {
	return p.SignAt(nostr.Now(), kind, content, tags...)
}

// SignAt makes an event of another time.
func (p *Person) SignAt(at nostr.Timestamp, kind int, content string, tags ...nostr.Tag) *nostr.Event {
	p.t.Helper()
	ev, err := p.Person.Sign(at, kind, content, tags...)
	if err != nil {
		p.t.Fatal(err)
	}
	return ev
}

// Announce signs an announcement that lists the tests' Tendril, and more clone URLs and relays.
func (p *Person) Announce(identifier, escaped string, clone, relays []string, more ...nostr.Tag) *nostr.Event {
	return p.Sign(30617, "", append(p.AnnouncementTags(Domain, identifier, escaped, clone, relays), more...)...)
}

// State signs a state event with the branches and tags of a work tree.
func (p *Person) State(identifier string, refs map[string]string, head string) *nostr.Event {
	return p.Sign(30618, "", outside.StateTags(identifier, refs, head)...)
}

// Client is a connection of go-nostr's own client to a relay.
func Client(t testing.TB, url string) *gonostr.Relay {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := gonostr.NewRelay(t.Context(), url, gonostr.WithNoticeHandler(func(string) {}))
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Fetch returns what a relay has for a filter.
func Fetch(t testing.TB, url string, f nostr.Filter) []*nostr.Event {
	t.Helper()
	c := Client(t, url)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := c.QuerySync(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// Serves waits until a relay serves an event.
func Serves(t testing.TB, url string, ev *nostr.Event) {
	t.Helper()
	c := Client(t, url)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		got, err := c.QuerySync(ctx, nostr.Filter{IDs: []string{ev.ID}})
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		if len(got) == 1 {
			if got[0].String() != ev.String() {
				t.Fatalf("served %s, want %s", got[0], ev)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("event of kind %d is not served: %s", ev.Kind, ev)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// Submit sends an event as a user does, on a connection of its own, and gives what the OK says.
func Submit(t testing.TB, url string, ev *nostr.Event) (ok bool, message string) {
	t.Helper()
	return SubmitFrom(t, url, "", ev)
}

// SubmitFrom is Submit as from an address ([DialFrom]).
func SubmitFrom(t testing.TB, url, address string, ev *nostr.Event) (ok bool, message string) {
	t.Helper()
	s := DialFrom(t, url, address)
	defer s.Close()
	return s.Submit(ev)
}

// Submit sends an event and gives what the OK says; a NOTICE is a refusal too.
func (s *Socket) Submit(ev *nostr.Event) (ok bool, message string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	ok, message, err := s.ws.Submit(ctx, ev)
	if err != nil {
		s.t.Fatalf("submit: %v", err)
	}
	return ok, message
}

// HungUp is what TrySubmit says when the connection ended before the OK.
const HungUp = "the connection ended"

// TrySubmit is Submit for a relay that may die at any moment.
func TrySubmit(t testing.TB, url string, ev *nostr.Event) (ok bool, message string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, err := outside.Dial(ctx, url, nil)
	if err != nil {
		return false, HungUp
	}
	defer ws.Close()
	if ok, message, err = ws.Submit(ctx, ev); err != nil {
		return false, HungUp
	}
	return ok, message
}
