package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// Socket is a bare WebSocket to a relay, for what a decent client would not send.
type Socket struct {
	t  testing.TB
	ws *websocket.Conn
}

// Dial opens a socket.
func Dial(t testing.TB, url string) *Socket { return DialFrom(t, url, "") }

// DialFrom opens a socket as from an address, for a Tendril that trusts its proxy. An empty address
// says nothing of where it comes from.
func DialFrom(t testing.TB, url, address string) *Socket {
	t.Helper()
	s, err := TryDialFrom(t, url, address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TryDial is Dial for what may be refused.
func TryDial(t testing.TB, url string) (*Socket, error) { return TryDialFrom(t, url, "") }

// TryDialFrom is DialFrom for what may be refused.
func TryDialFrom(t testing.TB, url, address string) (*Socket, error) {
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	header := http.Header{}
	if address != "" {
		header.Set("X-Forwarded-For", address)
	}
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(16 << 20)
	s := &Socket{t, ws}
	t.Cleanup(s.Close)
	return s, nil
}

// Close hangs up.
func (s *Socket) Close() { s.ws.CloseNow() }

// keepAlive pings until ctx ends or the server does not answer in time, as clients do that stay for
// long, and hangs up then: a server whose node has lost its power closes no connection.
func (s *Socket) keepAlive(ctx context.Context) {
	const often = 10 * time.Second
	for err := error(nil); err == nil; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(often):
		}
		ping, cancel := context.WithTimeout(ctx, often)
		err = s.ws.Ping(ping)
		cancel()
	}
	s.Close()
}

// Send sends a message of these elements.
func (s *Socket) Send(elements ...any) {
	s.t.Helper()
	if err := s.TrySend(elements...); err != nil {
		s.t.Fatalf("send: %v", err)
	}
}

// TrySend is Send on a connection that may have been closed.
func (s *Socket) TrySend(elements ...any) error {
	data, err := json.Marshal(elements)
	if err != nil {
		return err
	}
	return s.trySendText(string(data))
}

// SendText sends anything.
func (s *Socket) SendText(text string) {
	s.t.Helper()
	if err := s.trySendText(text); err != nil {
		s.t.Fatalf("send: %v", err)
	}
}

func (s *Socket) trySendText(text string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	return s.ws.Write(ctx, websocket.MessageText, []byte(text))
}

// Next is the next message.
func (s *Socket) Next() []any {
	s.t.Helper()
	m, err := s.TryNext()
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return m
}

// TryNext is the next message, or why none came.
func (s *Socket) TryNext() (m []any, err error) {
	data, err := s.read()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &m); err != nil || len(m) == 0 {
		return nil, fmt.Errorf("a message of a relay: %s", data)
	}
	return m, nil
}

func (s *Socket) read() ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	_, data, err := s.ws.Read(ctx)
	return data, err
}

// Submit sends an event and gives what the OK says; a NOTICE is a refusal too.
func (s *Socket) Submit(ev *nostr.Event) (ok bool, message string) {
	s.t.Helper()
	ok, message, err := s.TrySubmit(ev)
	if err != nil {
		s.t.Fatalf("submit: %v", err)
	}
	return ok, message
}

// TrySubmit is Submit on a connection that may be closed. Messages of other kinds that come before
// are passed over.
func (s *Socket) TrySubmit(ev *nostr.Event) (ok bool, message string, err error) {
	if err := s.TrySend("EVENT", ev); err != nil {
		return false, "", err
	}
	for {
		m, err := s.TryNext()
		switch {
		case err != nil:
			return false, "", err
		case m[0] == "OK" && len(m) == 4 && m[1] == ev.ID:
			return m[2] == true, fmt.Sprint(m[3]), nil
		case m[0] == "NOTICE" && len(m) == 2:
			return false, fmt.Sprint(m[1]), nil
		}
	}
}

// Query asks for stored events.
func (s *Socket) Query(filter nostr.Filter) (events []*nostr.Event, err error) {
	if err := s.TrySend("REQ", "query", filter); err != nil {
		return nil, err
	}
	for {
		data, err := s.read()
		if err != nil {
			return nil, err
		}
		var verb, sub string
		ev := &nostr.Event{}
		err = json.Unmarshal(data, &[]any{&verb, &sub, ev})
		switch {
		case verb == "EVENT" && err == nil:
			events = append(events, ev)
		case verb == "EOSE":
			return events, s.TrySend("CLOSE", "query")
		default:
			return nil, fmt.Errorf("answered: %s", data)
		}
	}
}

// EventID is the id of the event in an EVENT message.
func EventID(m []any) (id string) {
	if len(m) == 3 {
		if ev, is := m[2].(map[string]any); is {
			id, _ = ev["id"].(string)
		}
	}
	return id
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

// ErrHungUp is what TrySubmit says when the connection ended before the OK.
var ErrHungUp = errors.New("the connection ended")

// TrySubmit is Submit for a relay that may die at any moment. An error is [ErrHungUp], or why the
// event was refused.
func TrySubmit(t testing.TB, url string, ev *nostr.Event) error {
	s, err := TryDial(t, url)
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

// Count asks a relay how many events match (NIP-45). The test fails if the relay does not know
// exactly, as ours does not of 100,000 and more; for those there is [CountAll].
func Count(t testing.TB, url string, filter any) int {
	t.Helper()
	n, exact := count(t, url, filter)
	if !exact {
		t.Fatalf("about %d events match %v; the relay stopped counting", n, filter)
	}
	return n
}

// CountAll asks a relay how many events match, however many: where it does not count so far, in
// smaller pieces of time.
func CountAll(t testing.TB, url string, filter nostr.Filter) int {
	t.Helper()
	n, exact := count(t, url, filter)
	if exact {
		return n
	}
	from, to := nostr.Timestamp(0), nostr.Timestamp(1<<32)
	if filter.Since != nil {
		from = *filter.Since
	}
	if filter.Until != nil {
		to = *filter.Until
	}
	if from == to {
		t.Fatalf("%d events and more of one second match %v; the relay stopped counting", n, filter)
	}
	middle := from + (to-from)/2
	after := middle + 1
	older, newer := filter, filter
	older.Since, older.Until = &from, &middle
	newer.Since, newer.Until = &after, &to
	return CountAll(t, url, older) + CountAll(t, url, newer)
}

// count asks for one count, and whether it is exact.
func count(t testing.TB, url string, filter any) (n int, exact bool) {
	t.Helper()
	s := Dial(t, url)
	defer s.Close()
	s.Send("COUNT", "n", filter)
	m := s.Next()
	if m[0] != "COUNT" {
		t.Fatalf("COUNT is answered %v", m)
	}
	answer := m[2].(map[string]any)
	approximate, _ := answer["approximate"].(bool)
	return int(answer["count"].(float64)), !approximate
}
