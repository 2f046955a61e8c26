package outside

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gobwas/ws"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

const (
	gigantic = 1 << 30                // of a frame, in bytes
	block    = 1 << 16                // of it that is written at once
	drip     = 200 * time.Millisecond // for a byte
	promised = 500                    // ids in an answer
)

// Trick is what a hostile relay does with every message of its clients. An error ends the
// connection.
type Trick func(s *stage, m message) error

// Tricks are all of them, by name.
var Tricks = map[string]Trick{
	// Events whose signature or content was changed, for any filter, and then EOSE.
	"forged": func(s *stage, m message) error { return s.answer(m, s.forged(), true) },
	// The same events again and again, and never EOSE.
	"endless": func(s *stage, m message) (err error) {
		for m.verb == "REQ" && err == nil {
			err = s.answer(m, s.events(), false)
		}
		return err
	},
	"silent": func(*stage, message) error { return nil },
	"refusing": func(s *stage, m message) error {
		if m.verb != "REQ" {
			return nil
		}
		return s.say(`["CLOSED",%q,"restricted: members only"]`, m.sub)
	},
	// A frame of 1 GiB, sent as fast as it is taken.
	"gigantic": func(s *stage, _ message) error {
		err := s.begin(gigantic, "")
		for n := 0; n < gigantic && err == nil; n += block {
			err = s.raw(strings.Repeat("[", block))
		}
		return err
	},
	// Ids by NIP-77, another set each time, of which none is delivered.
	"promising": func(s *stage, m message) error {
		if m.verb != "NEG-OPEN" && m.verb != "NEG-MSG" {
			return s.answer(m, nil, true)
		}
		items := make([]reconcile.Item, promised)
		for i := range items {
			items[i].CreatedAt = nostr.Now() - nostr.Timestamp(i)
			rand.Read(items[i].ID[:])
		}
		said, err := respond(reconcile.Pack(items), m.all[len(m.all)-1])
		if err != nil {
			return nil // nothing to answer
		}
		return s.say(`["NEG-MSG",%q,%q]`, m.sub, said)
	},
	// An event of which there comes one byte in a while.
	"dripping": func(s *stage, m message) error {
		text := fmt.Sprintf(`["EVENT",%q,%s]`, m.sub, strings.Join(s.events(), ""))
		err := s.begin(len(text), "")
		for i := 0; i < len(text) && err == nil; i++ {
			err = s.raw(text[i : i+1])
			time.Sleep(drip)
		}
		return err
	},
	// The connection is closed in the middle of an answer.
	"abrupt": func(s *stage, _ message) error {
		s.begin(1000, `["EVENT","`)
		return s.conn.Close()
	},
	"noticing": func(s *stage, _ message) (err error) {
		for n := 0; err == nil; n++ {
			err = s.say(`["NOTICE","ERROR: something is wrong, number %d"]`, n)
		}
		return err
	},
	// Every subscription is closed at once, and others too, again and again.
	"closing": func(s *stage, m message) (err error) {
		for n := 0; err == nil; n++ {
			s.say(`["CLOSED",%q,"error: closed"]`, m.sub)
			err = s.say(`["CLOSED","never-%d","error: closed"]`, n)
		}
		return err
	},
}

// stage is a connection to which tricks write, several at once.
type stage struct {
	*connection
	writing sync.Mutex
}

// playTrick does the trick for every message of a client, each in a goroutine of its own: what
// takes for ever does not keep the next message from being read.
func (c *connection) playTrick(trick Trick) {
	s := &stage{connection: c}
	var all sync.WaitGroup
	defer all.Wait()
	defer c.end()   // before the wait
	all.Go(c.write) // pings are answered
	for {
		data, err := c.next()
		if err != nil {
			return
		}
		if m, err := parse(data); err == nil {
			all.Go(func() {
				if trick(s, m) != nil {
					c.end()
				}
			})
		}
	}
}

// raw writes bytes.
func (s *stage) raw(data string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.conn.Write([]byte(data))
	return err
}

// begin writes the head of a frame of so many bytes, and the first of these.
func (s *stage) begin(size int, first string) error {
	var head strings.Builder
	ws.WriteHeader(&head, ws.Header{Fin: true, OpCode: ws.OpText, Length: int64(size)})
	return s.raw(head.String() + first)
}

func (s *stage) say(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return s.begin(len(text), text)
}

// answer sends events for a REQ.
func (s *stage) answer(m message, events []string, eose bool) error {
	if m.verb != "REQ" {
		return nil
	}
	for _, ev := range events {
		if err := s.say(`["EVENT",%q,%s]`, m.sub, ev); err != nil {
			return err
		}
	}
	if !eose {
		return nil
	}
	return s.say(`["EOSE",%q]`, m.sub)
}

// events are good ones, which tricks use.
func (s *stage) events() (texts []string) {
	s.relay.store.mu.RLock()
	defer s.relay.store.mu.RUnlock()
	for _, e := range s.relay.store.all {
		texts = append(texts, string(e.raw))
	}
	return texts
}

// forged are the events, changed so that a signature or an id is wrong.
func (s *stage) forged() (texts []string) {
	for n, text := range s.events() {
		var ev nostr.Event
		if ev.UnmarshalJSON([]byte(text)) != nil {
			continue
		}
		switch n % 3 {
		case 0: // a signature of something else
			ev.Content += " forged"
			ev.ID = ev.GetID()
		case 1: // an id of something else
			ev.Content += " forged"
		default:
			last := "0"
			if strings.HasSuffix(ev.Sig, last) {
				last = "1"
			}
			ev.Sig = ev.Sig[:len(ev.Sig)-1] + last
			ev.CreatedAt--
			ev.ID = ev.GetID()
		}
		texts = append(texts, ev.String())
	}
	return texts
}
