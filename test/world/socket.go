package world

import (
	"context"
	"encoding/json"
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

// DialFrom opens a socket as from an address, for a Tendril that trusts its proxy. An empty address
// says nothing of where it comes from.
func DialFrom(t testing.TB, url, address string) *Socket {
	t.Helper()
	s, err := TryDialFrom(t, url, address)
	must(t, err)
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
	must(s.t, s.TrySend(elements...))
}

// TrySend is Send on a connection that may have been closed.
func (s *Socket) TrySend(elements ...any) error {
	data, err := json.Marshal(elements)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	return s.ws.Write(ctx, websocket.MessageText, data)
}

// Next is the next message.
func (s *Socket) Next() []any {
	s.t.Helper()
	m, err := s.TryNext()
	must(s.t, err)
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
	must(s.t, err)
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
