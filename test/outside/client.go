package outside

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
)

// Socket is a bare WebSocket to a relay. One caller at a time may send, and one receive.
type Socket struct{ ws *websocket.Conn }

// Dial opens a socket to a ws:// or wss:// URL with these headers.
func Dial(ctx context.Context, url string, header http.Header) (*Socket, error) {
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(16 << 20)
	return &Socket{ws}, nil
}

// Close hangs up at once.
func (s *Socket) Close() { s.ws.CloseNow() }

// KeepAlive pings until ctx ends or the server does not answer within patience, as clients do that
// stay for long: a server whose node has lost its power closes no connection. The caller must read
// meanwhile.
func (s *Socket) KeepAlive(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(patience):
		}
		ping, cancel := context.WithTimeout(ctx, patience)
		err := s.ws.Ping(ping)
		cancel()
		if err != nil {
			return
		}
	}
}

// patience is how often a server is pinged, and how long it may take to answer.
const patience = 10 * time.Second

// Send sends a message of these elements.
func (s *Socket) Send(ctx context.Context, elements ...any) error {
	data, err := json.Marshal(elements)
	if err != nil {
		return err
	}
	return s.SendText(ctx, string(data))
}

// SendText sends anything.
func (s *Socket) SendText(ctx context.Context, text string) error {
	return s.ws.Write(ctx, websocket.MessageText, []byte(text))
}

// Next is the next message, as JSON elements.
func (s *Socket) Next(ctx context.Context) ([]json.RawMessage, error) {
	_, data, err := s.ws.Read(ctx)
	if err != nil {
		return nil, err
	}
	var m []json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read a message of a relay: %w", err)
	}
	return m, nil
}

// Submit sends an event and returns what its OK says; a NOTICE is a refusal too. Messages of other
// kinds that come before are passed over.
func (s *Socket) Submit(ctx context.Context, ev *nostr.Event) (ok bool, message string, err error) {
	if err := s.Send(ctx, "EVENT", ev); err != nil {
		return false, "", err
	}
	for {
		m, err := s.Next(ctx)
		if err != nil {
			return false, "", err
		}
		switch {
		case len(m) == 4 && text(m[0]) == "OK" && text(m[1]) == ev.ID:
			if err := json.Unmarshal(m[2], &ok); err != nil {
				return false, "", fmt.Errorf("read the OK of a relay: %w", err)
			}
			return ok, text(m[3]), nil
		case len(m) == 2 && text(m[0]) == "NOTICE":
			return false, text(m[1]), nil
		}
	}
}

// Query asks for stored events and returns them when the relay says EOSE. A CLOSED is an error.
func (s *Socket) Query(ctx context.Context, filter nostr.Filter) ([]*nostr.Event, error) {
	if err := s.Send(ctx, "REQ", "query", filter); err != nil {
		return nil, err
	}
	var events []*nostr.Event
	for {
		m, err := s.Next(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case len(m) == 3 && text(m[0]) == "EVENT" && text(m[1]) == "query":
			var ev nostr.Event
			if err := json.Unmarshal(m[2], &ev); err != nil {
				return nil, fmt.Errorf("read an event of a relay: %w", err)
			}
			events = append(events, &ev)
		case len(m) == 2 && text(m[0]) == "EOSE":
			return events, s.Send(ctx, "CLOSE", "query")
		case len(m) == 3 && text(m[0]) == "CLOSED":
			return nil, fmt.Errorf("the relay closed the subscription: %s", text(m[2]))
		}
	}
}

// text is a JSON string; anything else is empty.
func text(raw json.RawMessage) (s string) {
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
