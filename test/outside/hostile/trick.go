package hostile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

const (
	gigantic = 1 << 30                // of a frame, in bytes
	block    = 1 << 16                // of it that is written at once
	drip     = 200 * time.Millisecond // for a byte
	promised = 500                    // ids in an answer
)

// message is what a client said.
type message struct {
	verb, sub string
	rest      []json.RawMessage
}

// tricks are what relays do with a message. An error ends the connection.
var tricks = map[Trick]func(r *Relay, c *conn, m message) error{
	Forged: func(r *Relay, c *conn, m message) error {
		return c.answer(m, r.forged, true)
	},
	Endless: func(r *Relay, c *conn, m message) error {
		for m.verb == "REQ" && len(r.events) > 0 {
			if err := c.answer(m, r.events, false); err != nil {
				return err
			}
		}
		return nil
	},
	Silent: func(*Relay, *conn, message) error { return nil },
	Gigantic: func(_ *Relay, c *conn, _ message) error {
		if err := c.raw(head(finalText, gigantic)); err != nil {
			return err
		}
		for data, n := []byte(strings.Repeat("[", block)), 0; n < gigantic; n += len(data) {
			if err := c.raw(data); err != nil {
				return err
			}
		}
		return nil
	},
	Promising: func(_ *Relay, c *conn, m message) error {
		if m.verb != "NEG-OPEN" && m.verb != "NEG-MSG" {
			return c.answer(m, nil, true)
		}
		return c.promise(m)
	},
	Dripping: func(r *Relay, c *conn, m message) error {
		text := fmt.Sprintf(`["EVENT",%q,%s]`, m.sub, strings.Join(r.events, ""))
		for _, b := range append(head(finalText, len(text)), text...) {
			if err := c.raw([]byte{b}); err != nil {
				return err
			}
			time.Sleep(drip)
		}
		return nil
	},
	Abrupt: func(_ *Relay, c *conn, _ message) error {
		if err := c.raw(append(head(finalText, 1000), `["EVENT","`...)); err != nil {
			return err
		}
		return c.conn.Close()
	},
	Noticing: func(_ *Relay, c *conn, _ message) error {
		for n := 0; ; n++ {
			if err := c.send(fmt.Sprintf(`["NOTICE","ERROR: something is wrong, number %d"]`, n)); err != nil {
				return err
			}
		}
	},
	Closing: func(_ *Relay, c *conn, m message) error {
		for n := 0; ; n++ {
			if err := c.send(fmt.Sprintf(`["CLOSED",%q,"error: closed"]`, m.sub)); err != nil {
				return err
			}
			if err := c.send(fmt.Sprintf(`["CLOSED","never-%d","error: closed"]`, n)); err != nil {
				return err
			}
		}
	},
}

// answer sends events for a REQ.
func (c *conn) answer(m message, events []string, eose bool) error {
	if m.verb != "REQ" {
		return nil
	}
	for _, ev := range events {
		if err := c.send(fmt.Sprintf(`["EVENT",%q,%s]`, m.sub, ev)); err != nil {
			return err
		}
	}
	if !eose {
		return nil
	}
	return c.send(fmt.Sprintf(`["EOSE",%q]`, m.sub))
}

// promise answers a message of NIP-77 as who has a set of events that there are not.
func (c *conn) promise(m message) error {
	if len(m.rest) == 0 {
		return nil
	}
	var digits string
	if err := json.Unmarshal(m.rest[len(m.rest)-1], &digits); err != nil {
		return nil // nothing to answer
	}
	asked, err := hex.DecodeString(digits)
	if err != nil {
		return nil
	}
	items := make([]reconcile.Item, promised)
	for i := range items {
		items[i].CreatedAt = nostr.Now() - nostr.Timestamp(i)
		rand.Read(items[i].ID[:])
	}
	answer, err := reconcile.Respond(context.Background(), reconcile.Pack(items), asked, reconcile.DefaultLimits)
	if err != nil {
		return nil
	}
	return c.send(fmt.Sprintf(`["NEG-MSG",%q,%q]`, m.sub, hex.EncodeToString(answer)))
}

// run does the trick for every message of a client, each in a goroutine of its own: what takes for
// ever does not keep the next message from being read.
func (r *Relay) run(c *conn) {
	var all sync.WaitGroup
	defer all.Wait()
	defer c.conn.Close() // before the wait
	do := tricks[r.trick]
	for {
		data, err := c.next()
		if err != nil {
			return
		}
		r.heard.Add(1)
		m, ok := parse(data)
		if !ok {
			continue
		}
		all.Go(func() {
			if do(r, c, m) != nil {
				c.conn.Close()
			}
		})
	}
}

// parse reads a message as far as tricks need it.
func parse(data []byte) (m message, ok bool) {
	var elements []json.RawMessage
	if json.Unmarshal(data, &elements) != nil || len(elements) < 2 {
		return m, false
	}
	if json.Unmarshal(elements[0], &m.verb) != nil || json.Unmarshal(elements[1], &m.sub) != nil {
		return m, false
	}
	m.rest = elements[2:]
	return m, true
}
