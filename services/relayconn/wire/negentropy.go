package wire

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/nbd-wtf/go-nostr/nip77"

	"tendril.dev/lib/nostr"
)

// maxSub is how long a subscription id may be (NIP-01).
const maxSub = 64

// parseNegMsg reads a NEG-MSG. One that does not hold hex digits has no Frame: the session that it
// belongs to is to hear of it.
func parseNegMsg(parts []json.RawMessage) (Message, error) {
	m := Message{Kind: NegMsg}
	if len(parts) != 3 {
		return Message{}, fmt.Errorf("parse NEG-MSG: %d elements, want 3", len(parts))
	}
	if err := json.Unmarshal(parts[1], &m.Sub); err != nil {
		return Message{}, fmt.Errorf("parse NEG-MSG: %w", err)
	}
	// Hex digits need no escapes, so the text is what lies between the quotes.
	if digits := parts[2]; len(digits) >= 2 && digits[0] == '"' {
		digits = digits[1 : len(digits)-1]
		frame := make([]byte, hex.DecodedLen(len(digits)))
		if _, err := hex.Decode(frame, digits); err == nil {
			m.Frame = frame
		}
	}
	return m, nil
}

// largeNegMsg reads the beginning of a NEG-MSG that is too large, so that its session can ask for
// less.
func largeNegMsg(data []byte) (m Message, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`["NEG-MSG","`))
	if !ok {
		return Message{}, false
	}
	end := bytes.IndexByte(rest[:min(len(rest), maxSub+1)], '"')
	if end <= 0 || bytes.IndexByte(rest[:end], '\\') >= 0 {
		return Message{}, false
	}
	return Message{Kind: NegMsg, Sub: string(rest[:end]), TooLarge: true}, true
}

// NegOpen opens a session of reconciliation (NIP-77).
func (c *Conn) NegOpen(ctx context.Context, sub string, filter nostr.Filter, message []byte) error {
	data, err := nip77.OpenEnvelope{SubscriptionID: sub, Filter: filter, Message: hex.EncodeToString(message)}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode NEG-OPEN: %w", err)
	}
	return c.write(ctx, data)
}

// NegMsg goes on with a session.
func (c *Conn) NegMsg(ctx context.Context, sub string, message []byte) error {
	data, err := nip77.MessageEnvelope{SubscriptionID: sub, Message: hex.EncodeToString(message)}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode NEG-MSG: %w", err)
	}
	return c.write(ctx, data)
}

// NegClose ends a session.
func (c *Conn) NegClose(ctx context.Context, sub string) error {
	data, err := nip77.CloseEnvelope{SubscriptionID: sub}.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode NEG-CLOSE: %w", err)
	}
	return c.write(ctx, data)
}
