package strfry

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"tendril.dev/lib/reconcile"
)

// reconcileFrame is the longest message that strfry's side of NIP-77 writes, in bytes.
const reconcileFrame = 500_000

// hear acts on a message of the client.
func (c *connection) hear(data []byte) {
	var m []json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		c.refuse("bad msg: message is not an array")
		return
	}
	if len(m) < 2 {
		c.refuse("bad msg: too few array elements")
		return
	}
	var verb string
	if json.Unmarshal(m[0], &verb) != nil {
		c.refuse("bad msg: first element not a command like REQ")
		return
	}
	handlers := map[string]struct {
		called string
		act    func([]json.RawMessage) error
	}{
		"EVENT": {"bad event", c.event}, "REQ": {"bad req", c.req}, "CLOSE": {"bad close", c.close},
		"NEG-OPEN": {"bad msg", c.negOpen}, "NEG-MSG": {"negentropy error", c.negMsg}, "NEG-CLOSE": {"negentropy error", c.negClose},
	}
	h, known := handlers[verb]
	if !known || c.relay.limits.NoNegentropy && len(verb) > 4 && verb[:4] == "NEG-" {
		c.refuse("bad msg: unknown cmd")
		return
	}
	if err := h.act(m); err != nil {
		c.refuse(h.called + ": " + err.Error())
	}
}

// subID reads a subscription id.
func subID(raw json.RawMessage) (string, error) {
	var id string
	switch {
	case json.Unmarshal(raw, &id) != nil:
		return "", errors.New("subscription id was not a string")
	case id == "" || len(id) > longestSubID:
		return "", errors.New("invalid subscription id length")
	}
	return id, nil
}

func (c *connection) req(m []json.RawMessage) error {
	limits := c.relay.limits
	if len(m) < 3 {
		return errors.New("arr too small")
	}
	if len(m) > 2+limits.Filters {
		return errors.New("arr too big")
	}
	id, err := subID(m[1])
	if err != nil {
		return err
	}
	r := &request{id: id}
	for _, raw := range m[2:] {
		f, err := readFilter(raw, limits.Page)
		if err != nil {
			return err
		}
		r.filters = append(r.filters, f)
	}
	c.relay.traffic.requests.Add(1)
	if !slices.ContainsFunc(r.filters, func(f *filter) bool { return f.limit > 0 }) {
		for _, raw := range m {
			c.relay.traffic.live.Add(int64(len(raw)) + 1) // with a comma
		}
	}
	c.mu.Lock()
	delete(c.requests, id) // a new REQ takes the place of an old one
	if c.count(false) >= limits.Subscriptions {
		c.mu.Unlock()
		c.refuse("too many concurrent REQs")
		return nil
	}
	c.requests[id] = r
	c.mu.Unlock()
	var found []*entry
	seen := map[*entry]bool{}
	for _, f := range r.filters {
		for _, e := range c.relay.store.query(f, f.limit) {
			if !seen[e] {
				seen[e] = true
				found = append(found, e)
			}
		}
	}
	c.say(answer{sub: id, events: found, tail: []any{"EOSE", id}, finished: r})
	return nil
}

func (c *connection) close(m []json.RawMessage) error {
	id, err := subID(m[1])
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requests, id)
	return nil
}

func (c *connection) event(m []json.RawMessage) error {
	e, ev, err := read(bytes.Clone(m[1]))
	if err != nil {
		return err
	}
	ok, _ := ev.CheckSignature() // an error says that it is malformed
	switch {
	case !ok || !ev.CheckID():
		c.say(answer{tail: []any{"OK", ev.ID, false, "invalid: bad event id or signature"}})
	case !c.relay.store.add(e):
		c.say(answer{tail: []any{"OK", ev.ID, true, "duplicate: have this event"}})
	default:
		c.say(answer{tail: []any{"OK", ev.ID, true, ""}})
		c.relay.tell(e)
	}
	return nil
}

func (c *connection) negOpen(m []json.RawMessage) error {
	if len(m) < 4 {
		return errors.New("negentropy query missing elements")
	}
	id, err := subID(m[1])
	if err != nil {
		return err
	}
	f, err := readFilter(m[2], math.MaxInt)
	if err != nil {
		return err
	}
	limits := c.relay.limits
	c.relay.traffic.reconciled.Add(1)
	found := c.relay.store.query(f, min(f.limit, limits.Reconciled+1))
	if len(found) > limits.Reconciled {
		c.say(answer{tail: []any{"NEG-ERR", id, "blocked: too many query results"}})
		return nil
	}
	items := make([]reconcile.Item, len(found))
	for i, e := range found {
		items[i] = e.item
	}
	c.mu.Lock()
	delete(c.sessions, id)
	if len(c.sessions) >= limits.Subscriptions {
		c.mu.Unlock()
		c.refuse("too many concurrent NEG requests")
		return nil
	}
	c.sessions[id] = reconcile.Pack(items)
	c.mu.Unlock()
	return c.negAnswer(id, m[3])
}

func (c *connection) negMsg(m []json.RawMessage) error {
	if len(m) < 3 {
		return errors.New("negentropy message missing elements")
	}
	id, err := subID(m[1])
	if err != nil {
		return err
	}
	return c.negAnswer(id, m[2])
}

func (c *connection) negAnswer(id string, raw json.RawMessage) error {
	c.mu.Lock()
	set, open := c.sessions[id]
	c.mu.Unlock()
	if !open {
		c.say(answer{tail: []any{"NEG-ERR", id, "closed: unknown subscription handle"}})
		return nil
	}
	var digits string
	if err := json.Unmarshal(raw, &digits); err != nil {
		return errors.New("negentropy message is not a string")
	}
	message, err := hex.DecodeString(digits)
	if err != nil {
		return errors.New("negentropy message is not hex")
	}
	limits := reconcile.DefaultLimits
	limits.Frame = reconcileFrame
	next, err := reconcile.Respond(context.Background(), set, message, limits)
	if err != nil {
		return fmt.Errorf("reconcile: %w", err)
	}
	c.say(answer{tail: []any{"NEG-MSG", id, hex.EncodeToString(next)}})
	return nil
}

func (c *connection) negClose(m []json.RawMessage) error {
	id, err := subID(m[1])
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sessions, id)
	return nil
}
