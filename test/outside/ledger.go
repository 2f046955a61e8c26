package outside

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Ledger notes which address was connected to which relay, from when to when, as the relays see it.
type Ledger struct {
	mu    sync.Mutex
	spans []*Span
}

// Span is one WebSocket to a relay.
type Span struct {
	Relay  string    `json:"relay"`
	From   string    `json:"from"` // address of the client, without its port
	Opened time.Time `json:"opened"`
	Closed time.Time `json:"closed,omitzero"` // zero: still open
}

// end is when a span ended, or now.
func (s Span) end(now time.Time) time.Time {
	if s.Closed.IsZero() {
		return now
	}
	return s.Closed
}

// Spans is everything noted so far, in the order in which it began.
func (l *Ledger) Spans() []Span {
	l.mu.Lock()
	defer l.mu.Unlock()
	spans := make([]Span, len(l.spans))
	for i, s := range l.spans {
		spans[i] = *s
	}
	return spans
}

// Serve serves a relay on a listener under its name in the ledger, until the listener is closed.
func (l *Ledger) Serve(listener net.Listener, name string, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, ConnState: func(c net.Conn, state http.ConnState) {
		if conn, ours := c.(*noted); ours && state == http.StateHijacked { // a WebSocket begins
			conn.begin(name)
		}
	}}
	return server.Serve(noting{listener, l})
}

// noting is a listener whose connections tell the ledger when they end.
type noting struct {
	net.Listener
	ledger *Ledger
}

func (n noting) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &noted{Conn: c, ledger: n.ledger}, nil
}

type noted struct {
	net.Conn
	ledger *Ledger
	span   *Span // nil: no WebSocket; guarded by the ledger
}

func (c *noted) begin(relay string) {
	from, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		from = c.RemoteAddr().String()
	}
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.span = &Span{Relay: relay, From: from, Opened: time.Now()}
	c.ledger.spans = append(c.ledger.spans, c.span)
}

// Close notes the end of the span.
func (c *noted) Close() error {
	c.ledger.mu.Lock()
	if c.span != nil && c.span.Closed.IsZero() {
		c.span.Closed = time.Now()
	}
	c.ledger.mu.Unlock()
	return c.Conn.Close()
}

// Overlap says that two addresses were connected to one relay at once.
type Overlap struct {
	Relay         string
	First, Second string // addresses, in the order in which they came
	From          time.Time
	For           time.Duration
}

// Overlaps returns where two addresses were connected to one relay at once, longest first. Spans
// that are open end now.
func Overlaps(spans []Span, now time.Time) []Overlap {
	var found []Overlap
	for _, relay := range byRelay(spans) {
		for i, first := range relay {
			for _, second := range relay[i+1:] {
				from, until := second.Opened, second.end(now)
				if end := first.end(now); end.Before(until) {
					until = end
				}
				if first.From != second.From && from.Before(until) {
					found = append(found, Overlap{first.Relay, first.From, second.From, from, until.Sub(from)})
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Overlap) int { return int(b.For - a.For) })
	return found
}

// Gap says that a relay had no connection.
type Gap struct {
	Relay string
	From  time.Time
	For   time.Duration
}

// Gaps returns for how long relays were without a connection after their first one and since a
// time, longest first. A relay without a connection has a gap until now.
func Gaps(spans []Span, since, now time.Time) []Gap {
	var found []Gap
	for name, relay := range byRelay(spans) {
		covered := relay[0].Opened
		if covered.Before(since) {
			covered = since
		}
		for _, span := range append(relay, Span{Opened: now, Closed: now}) {
			if covered.Before(span.Opened) {
				found = append(found, Gap{name, covered, span.Opened.Sub(covered)})
			}
			if end := span.end(now); covered.Before(end) {
				covered = end
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Gap) int { return int(b.For - a.For) })
	return found
}

// Holders returns which addresses are connected to each relay.
func Holders(spans []Span) map[string][]string {
	holders := map[string][]string{}
	for _, s := range spans {
		if s.Closed.IsZero() {
			holders[s.Relay] = append(holders[s.Relay], s.From)
		}
	}
	return holders
}

// byRelay sorts spans into relays, each in the order in which they began.
func byRelay(spans []Span) map[string][]Span {
	relays := map[string][]Span{}
	for _, s := range spans {
		relays[s.Relay] = append(relays[s.Relay], s)
	}
	for _, r := range relays {
		slices.SortStableFunc(r, func(a, b Span) int { return a.Opened.Compare(b.Opened) })
	}
	return relays
}
