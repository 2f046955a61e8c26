package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/tidwall/gjson"

	"tendril.dev/lib/nostr"
)

var errShape = errors.New("parse message: not JSON of the shape of NIP-01")

// mostParts is how many elements of a message are looked at: no message that is known has more. So
// a message of a million elements costs no more than its bytes.
const mostParts = 4

// Parse reads one message. A verb that is none of our business gives an empty Kind. The message
// shares no memory with data.
func Parse(data []byte) (Message, error) {
	var parts []gjson.Result
	if message := gjson.ParseBytes(data); message.IsArray() && json.Valid(data) {
		message.ForEach(func(_, v gjson.Result) bool {
			parts = append(parts, v)
			return len(parts) <= mostParts
		})
	}
	whole := true
	text := func(i int) string {
		if whole = whole && i < len(parts) && parts[i].Type == gjson.String; !whole {
			return ""
		}
		return parts[i].Str
	}
	m := Message{Kind: Kind(text(0))}
	switch m.Kind {
	case Event, NegMsg:
		m.Sub = text(1)
		whole = whole && len(parts) == 3
	case EOSE:
		m.Sub = text(1)
	case Closed, NegErr:
		if m.Sub = text(1); len(parts) > 2 {
			m.Reason = text(2)
		}
	case Notice, Auth:
		m.Reason = text(1)
	default:
		m = Message{}
	}
	switch {
	case !whole:
		return Message{}, errShape
	case m.Kind == Event:
		ev, err := nostr.Parse(data[parts[2].Index : parts[2].Index+len(parts[2].Raw)])
		if err != nil {
			return Message{}, err
		}
		m.Event = ev
	case m.Kind == NegMsg:
		if frame, err := hex.DecodeString(parts[2].Str); err == nil {
			m.Frame = frame
		}
	case m.Kind == Auth && len(m.Reason) > maxReason: // no challenge is so long
		return Message{}, nil
	}
	m.Reason = m.Reason[:min(len(m.Reason), maxReason)]
	return m, nil
}
