package world

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"
)

// Person has a key and signs events.
type Person struct {
	t      testing.TB
	secret string
	PubKey string
	Npub   string
}

// NewPerson makes a person with a key of their own.
func NewPerson(t testing.TB) *Person {
	t.Helper()
	p := &Person{t: t, secret: nostr.GeneratePrivateKey()}
	var err error
	if p.PubKey, err = nostr.GetPublicKey(p.secret); err != nil {
		t.Fatal(err)
	}
	if p.Npub, err = nip19.EncodePublicKey(p.PubKey); err != nil {
		t.Fatal(err)
	}
	return p
}

// Sign makes an event of now.
func (p *Person) Sign(kind int, content string, tags ...nostr.Tag) *nostr.Event {
	return p.SignAt(nostr.Now(), kind, content, tags...)
}

// SignAt makes an event of another time.
func (p *Person) SignAt(at nostr.Timestamp, kind int, content string, tags ...nostr.Tag) *nostr.Event {
	p.t.Helper()
	ev := &nostr.Event{Kind: kind, CreatedAt: at, Content: content, Tags: tags}
	if err := ev.Sign(p.secret); err != nil {
		p.t.Fatal(err)
	}
	return ev
}

// Address is the reference of a repository of this person.
func (p *Person) Address(identifier string) string { return "30617:" + p.PubKey + ":" + identifier }

// Announce signs an announcement that lists the tests' Tendril, and more clone URLs and relays.
func (p *Person) Announce(identifier, escaped string, clone, relays []string, more ...nostr.Tag) *nostr.Event {
	tags := nostr.Tags{
		{"d", identifier}, {"name", identifier},
		append(nostr.Tag{"clone", "http://" + Domain + "/" + p.Npub + "/" + escaped + ".git"}, clone...),
		append(nostr.Tag{"relays", "ws://" + Domain}, relays...),
	}
	return p.Sign(30617, "", append(tags, more...)...)
}

// State signs a state event with the branches and tags of a work tree.
func (p *Person) State(identifier string, refs map[string]string, head string) *nostr.Event {
	tags := nostr.Tags{{"d", identifier}}
	for name, id := range refs {
		tags = append(tags, nostr.Tag{name, id})
	}
	slices.SortFunc(tags[1:], func(a, b nostr.Tag) int { return slices.Compare(a, b) })
	return p.Sign(30618, "", append(tags, nostr.Tag{"HEAD", "ref: " + head})...)
}

// Client is a connection of go-nostr's own client to a relay.
func Client(t testing.TB, url string) *nostr.Relay {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := nostr.NewRelay(t.Context(), url, nostr.WithNoticeHandler(func(string) {}))
	if err := c.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Fetch gives what a relay has for a filter.
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
	s.Send("EVENT", ev)
	for {
		m := s.Next()
		if m[0] == "OK" && m[1] == ev.ID {
			return m[2].(bool), m[3].(string)
		}
		if m[0] == "NOTICE" {
			return false, m[1].(string)
		}
	}
}

// HungUp is what TrySubmit says when the connection ended before the OK.
const HungUp = "the connection ended"

// TrySubmit is Submit for a relay that may die at any moment.
func TrySubmit(t testing.TB, url string, ev *nostr.Event) (ok bool, message string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		return false, HungUp
	}
	defer ws.CloseNow()
	data, err := nostr.EventEnvelope{Event: *ev}.MarshalJSON()
	if err != nil {
		t.Error(err)
		return false, err.Error()
	}
	if err := ws.Write(ctx, websocket.MessageText, data); err != nil {
		return false, HungUp
	}
	for {
		_, answer, err := ws.Read(ctx)
		if err != nil {
			return false, HungUp
		}
		var m []any
		if err := json.Unmarshal(answer, &m); err == nil && len(m) == 4 && m[0] == "OK" && m[1] == ev.ID {
			return m[2] == true, fmt.Sprint(m[3])
		}
	}
}
