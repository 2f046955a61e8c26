// Package wire speaks NIP-01 to another relay over one guarded WebSocket. Everything that comes in
// is hostile: messages are bounded, and what is not understood is passed over or ends the
// connection, never worse. It does not know what was asked for.
package wire

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip77"
	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
)

// Kind is the verb of a relay's message.
type Kind string

// The verbs that matter to us.
const (
	Event  Kind = "EVENT"
	EOSE   Kind = "EOSE"
	Closed Kind = "CLOSED"
	Notice Kind = "NOTICE"
	NegMsg Kind = "NEG-MSG"
	NegErr Kind = "NEG-ERR"
	Auth   Kind = "AUTH" // the relay's challenge (NIP-42)
	// Dropped stands for a message that cannot be used; its Reason is one of the following.
	Dropped Kind = "dropped"
)

// Reasons for which a message is dropped.
const (
	Unreadable = "unreadable" // it is no message of NIP-01
	TooLarge   = "too large"
)

// Message is one message of a relay.
type Message struct {
	Kind   Kind
	Sub    string       // subscription id; empty for a notice
	Event  *nostr.Event // of EVENT; not verified
	Reason string       // of CLOSED, NOTICE and NEG-ERR, cut to a bounded length; the challenge of AUTH
	// Frame is what NEG-MSG says in the protocol of NIP-77; empty: it is no such message.
	Frame []byte
}

const (
	maxReason    = 500
	writeTimeout = 20 * time.Second
	pingEvery    = 30 * time.Second
	// maxGarbage is how many messages in a row may be no NIP-01, or too large, before the
	// connection is given up.
	maxGarbage = 50
	// passOver is how much larger than what is taken a message may be to be passed over, as a
	// factor. Beyond it the connection ends.
	passOver = 16
	// maxFrame is how long the text of a NEG-MSG may be. What goes beyond the limit of other messages
	// waits for one of largeAtOnce places of the process, and must come within largeTime.
	maxFrame, largeAtOnce, largeTime = 4 << 20, 4, 30 * time.Second
	// keptInput is how large the memory may be that a connection keeps for its next message.
	keptInput = 16 << 10
)

// Conn is a connection to a relay. One goroutine may read while others write. If something cannot
// be written, the connection ends, and Read says why.
type Conn struct {
	ws    *websocket.Conn
	most  int64                 // bytes of a message
	busy  atomic.Bool           // a message is being handled, so nothing is read, a pong neither
	count atomic.Int64          // messages that came
	input bytes.Buffer          // the message that is being read
	large bool                  // which has one of the places for large ones
	lost  atomic.Pointer[error] // why something could not be written; nil: all could
}

// Dial connects. ctx bounds the opening only; maxMessage is the largest message taken, in bytes.
func Dial(ctx context.Context, guard *netguard.Guard, url string, maxMessage int64) (*Conn, error) {
	ws, err := guard.DialWebSocket(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(max(passOver*maxMessage, 2*maxFrame))
	return &Conn{ws: ws, most: maxMessage}, nil
}

// Close closes the connection without waiting for the relay.
func (c *Conn) Close() { _ = c.ws.CloseNow() }

// Read gives every message to fn, in order, until the connection ends, fn returns an error, or ctx
// ends. While fn works nothing is read, which is what slows a relay down that sends more than we
// can take. A message that is too large is passed over: it would not fit through the bus, and the
// rest of what the relay has is still worth having.
func (c *Conn) Read(ctx context.Context, fn func(Message) error) error {
	// A context that can end would cost more for each message than all else that is done to read
	// it. The socket is closed instead.
	defer context.AfterFunc(ctx, c.Close)()
	garbage := 0
	defer c.handled()
	for {
		c.handled()
		m, err := c.next()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && c.lost.Load() != nil:
			return fmt.Errorf("write to relay: %w", *c.lost.Load())
		case errors.Is(err, errGarbage):
			if garbage++; garbage == maxGarbage {
				return &netguard.ProtocolError{Err: fmt.Errorf("%d messages in a row that are no use, the last: %w", garbage, err)}
			}
			if m.Kind = Dropped; m.Reason == "" {
				m.Reason = Unreadable
			}
			if err := fn(m); err != nil {
				return err
			}
			continue
		case err != nil:
			// What breaks the protocol of WebSocket has no type.
			if websocket.CloseStatus(err) < 0 && netguard.Classify(err) == netguard.CauseOther {
				err = &netguard.ProtocolError{Err: err}
			}
			return fmt.Errorf("read from relay: %w", err)
		}
		garbage = 0
		c.busy.Store(true)
		err = fn(m)
		c.busy.Store(false)
		if err != nil {
			return err
		}
	}
}

// errGarbage: a message that cannot be used, though the connection stands.
var errGarbage = errors.New("not a message of NIP-01")

// next reads one message.
func (c *Conn) next() (Message, error) {
	typ, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return Message{}, err
	}
	if c.input.Cap() > keptInput {
		c.input = bytes.Buffer{}
	}
	c.input.Reset()
	_, err = c.input.ReadFrom(io.LimitReader(r, c.most+1))
	if err == nil && int64(c.input.Len()) > c.most && bytes.HasPrefix(c.input.Bytes(), []byte(`["NEG-MSG"`)) {
		err = c.readLarge(r)
	}
	data, most := c.input.Bytes(), c.most
	if c.large {
		most = max(most, maxFrame)
	}
	if err == nil && int64(len(data)) > most {
		_, err = io.Copy(io.Discard, r)
	}
	c.count.Add(1)
	switch {
	case err != nil:
		return Message{}, err
	case int64(len(data)) > most:
		return Message{Reason: TooLarge}, fmt.Errorf("%w: more than %d bytes", errGarbage, most)
	case typ != websocket.MessageText:
		return Message{}, fmt.Errorf("%w: not text", errGarbage)
	}
	m, err := Parse(data)
	if err != nil {
		return Message{}, fmt.Errorf("%w: %w", errGarbage, err)
	}
	return m, nil
}

// large bounds the messages of all connections that are larger than others may be.
var large = semaphore.NewWeighted(largeAtOnce)

// readLarge reads the rest of a NEG-MSG. It has its place until the message was handled.
func (c *Conn) readLarge(r io.Reader) error {
	if err := large.Acquire(context.Background(), 1); err != nil {
		return err
	}
	c.large = true
	defer time.AfterFunc(largeTime, c.Close).Stop()
	_, err := c.input.ReadFrom(io.LimitReader(r, maxFrame+1-int64(c.input.Len())))
	return err
}

// handled gives back the place of a large message.
func (c *Conn) handled() {
	if c.large {
		c.large = false
		large.Release(1)
	}
}

// Req opens a subscription.
func (c *Conn) Req(sub string, filters []nostr.Filter) {
	c.send(gonostr.ReqEnvelope{SubscriptionID: sub, Filters: filters})
}

// Unsubscribe closes a subscription.
func (c *Conn) Unsubscribe(sub string) {
	c.send(gonostr.CloseEnvelope(sub))
}

// Publish gives the relay an event.
func (c *Conn) Publish(ev *nostr.Event) { c.send(gonostr.EventEnvelope{Event: *ev}) }

// Auth answers the relay's challenge (NIP-42).
func (c *Conn) Auth(ev nostr.Event) {
	c.send(gonostr.AuthEnvelope{Event: ev})
}

// NegOpen opens a session of reconciliation (NIP-77).
func (c *Conn) NegOpen(sub string, filter nostr.Filter, message []byte) {
	c.send(nip77.OpenEnvelope{SubscriptionID: sub, Filter: filter, Message: hex.EncodeToString(message)})
}

// NegMsg goes on with a session.
func (c *Conn) NegMsg(sub string, message []byte) {
	c.send(nip77.MessageEnvelope{SubscriptionID: sub, Message: hex.EncodeToString(message)})
}

// NegClose ends a session.
func (c *Conn) NegClose(sub string) {
	c.send(nip77.CloseEnvelope{SubscriptionID: sub})
}

func (c *Conn) send(m json.Marshaler) {
	data, err := m.MarshalJSON()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		err = c.ws.Write(ctx, websocket.MessageText, data)
	}
	if err != nil {
		c.lost.CompareAndSwap(nil, &err)
		c.Close()
	}
}

// KeepAlive pings until ctx ends; a relay that does not answer, and says nothing else either, is
// gone.
func (c *Conn) KeepAlive(ctx context.Context) error {
	for backoff.Sleep(ctx, pingEvery) == nil {
		before := c.count.Load()
		ping, cancel := context.WithTimeout(ctx, pingEvery)
		err := c.ws.Ping(ping)
		cancel()
		// What came before the pong may not have been read yet.
		if err != nil && ctx.Err() == nil && !c.busy.Load() && c.count.Load() == before {
			return fmt.Errorf("ping relay: %w", err)
		}
	}
	return nil
}
