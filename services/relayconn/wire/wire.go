// Package wire speaks NIP-01 to another relay over one guarded WebSocket. Everything that comes in is hostile: messages are bounded, and what
// is not understood is passed over or ends the connection, never worse.
package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/netguard"
)

// Kind is the verb of a relay's message.
type Kind string

// The verbs that matter to us.
const (
	Event  Kind = "EVENT"
	EOSE   Kind = "EOSE"
	Closed Kind = "CLOSED"
	Notice Kind = "NOTICE"
)

// Message is one message of a relay.
type Message struct {
	Kind   Kind
	Sub    string       // subscription id; empty for a notice
	Event  *nostr.Event // of EVENT; not verified
	Reason string       // of CLOSED and NOTICE, cut to a bounded length
}

const (
	maxReason    = 500
	writeTimeout = 20 * time.Second
	pingEvery    = 30 * time.Second
	// maxGarbage is how many messages in a row may be no NIP-01 before the connection is given up.
	maxGarbage = 50
)

// Conn is a connection to a relay. One goroutine may read while others write.
type Conn struct {
	ws   *websocket.Conn
	busy atomic.Bool // a message is being handled, so nothing is read, a pong neither
}

// Dial connects. ctx bounds the opening only; maxMessage is the largest message taken, in bytes.
func Dial(ctx context.Context, guard *netguard.Guard, url string, maxMessage int64) (*Conn, error) {
	ws, err := guard.DialWebSocket(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(maxMessage)
	return &Conn{ws: ws}, nil
}

// Close says goodbye and closes.
func (c *Conn) Close() { c.ws.Close(websocket.StatusGoingAway, "bye") }

// Read gives every message to fn, in order, until the connection or ctx ends or fn returns an error. While fn works nothing is read, which is
// what slows a relay down that sends more than we can take.
func (c *Conn) Read(ctx context.Context, fn func(Message) error) error {
	garbage := 0
	for {
		typ, data, err := c.ws.Read(ctx)
		if err != nil {
			return fmt.Errorf("read from relay: %w", err)
		}
		m, err := Parse(data)
		if typ != websocket.MessageText || err != nil {
			if garbage++; garbage == maxGarbage {
				return &netguard.ProtocolError{Err: fmt.Errorf("%d messages in a row that are no NIP-01, the last: %w", garbage, errors.Join(err, errNotText(typ)))}
			}
			continue
		}
		garbage = 0
		if m.Kind == "" {
			continue // a verb that is none of our business
		}
		c.busy.Store(true)
		err = fn(m)
		c.busy.Store(false)
		if err != nil {
			return err
		}
	}
}

func errNotText(typ websocket.MessageType) error {
	if typ != websocket.MessageText {
		return errors.New("not text")
	}
	return nil
}

// Parse reads one message. A verb that does not matter to us gives an empty Kind.
func Parse(data []byte) (Message, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return Message{}, fmt.Errorf("parse message: %w", err)
	}
	text := func(i int) (string, error) {
		var s string
		if i >= len(parts) {
			return "", fmt.Errorf("parse message: %d elements", len(parts))
		}
		if err := json.Unmarshal(parts[i], &s); err != nil {
			return "", fmt.Errorf("parse message: element %d: %w", i, err)
		}
		return s, nil
	}
	verb, err := text(0)
	if err != nil {
		return Message{}, err
	}
	m := Message{Kind: Kind(verb)}
	switch m.Kind {
	case Event:
		if len(parts) != 3 {
			return Message{}, fmt.Errorf("parse EVENT: %d elements, want 3", len(parts))
		}
		if m.Sub, err = text(1); err != nil {
			return Message{}, err
		}
		m.Event = new(nostr.Event)
		if err := m.Event.UnmarshalJSON(parts[2]); err != nil {
			return Message{}, fmt.Errorf("parse EVENT: %w", err)
		}
	case EOSE:
		m.Sub, err = text(1)
	case Closed:
		if m.Sub, err = text(1); err == nil && len(parts) > 2 {
			m.Reason, err = text(2)
		}
	case Notice:
		m.Reason, err = text(1)
	default:
		return Message{}, nil
	}
	if len(m.Reason) > maxReason {
		m.Reason = m.Reason[:maxReason]
	}
	return m, err
}

// Req opens a subscription.
func (c *Conn) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	data, err := nostr.ReqEnvelope{SubscriptionID: sub, Filters: filters}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode REQ: %w", err)
	}
	return c.write(ctx, data)
}

// Unsubscribe closes a subscription.
func (c *Conn) Unsubscribe(ctx context.Context, sub string) error {
	data, err := nostr.CloseEnvelope(sub).MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode CLOSE: %w", err)
	}
	return c.write(ctx, data)
}

func (c *Conn) write(ctx context.Context, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := c.ws.Write(ctx, websocket.MessageText, data); err != nil {
		return fmt.Errorf("write to relay: %w", err)
	}
	return nil
}

// KeepAlive pings until ctx ends; a relay that does not answer is gone.
func (c *Conn) KeepAlive(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pingEvery):
		}
		ping, cancel := context.WithTimeout(ctx, pingEvery)
		err := c.ws.Ping(ping)
		cancel()
		if err != nil && ctx.Err() == nil && !c.busy.Load() {
			return fmt.Errorf("ping relay: %w", err)
		}
	}
}
