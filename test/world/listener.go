package world

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Listener is someone who runs `nats sub 'grasp.>'`.
type Listener struct {
	Conn *nats.Conn
	mu   sync.Mutex
	said []Said
}

// Said is one message on the bus.
type Said struct {
	Subject string
	Header  nats.Header
	Data    string
}

// Listen subscribes to everything.
func Listen(t testing.TB, url string) *Listener {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	l := &Listener{Conn: conn}
	if _, err := conn.Subscribe("grasp.>", func(m *nats.Msg) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.said = append(l.said, Said{m.Subject, m.Header, string(m.Data)})
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return l
}

// Said is everything that was said so far.
func (l *Listener) Said() []Said {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Said(nil), l.said...)
}

// Heard reports whether a message on a subject that begins so has been heard that contains a text.
func (l *Listener) Heard(subject, text string) bool {
	_, heard := l.HeardAfter(0, subject, text)
	return heard
}

// HeardAfter is Heard for what was said after so many messages. It gives how many came before.
func (l *Listener) HeardAfter(before int, subject, text string) (at int, heard bool) {
	for at, s := range l.Said() {
		if at >= before && strings.HasPrefix(s.Subject, subject) && strings.Contains(s.Data, text) {
			return at, true
		}
	}
	return 0, false
}

// Transcript is what concerns one of the texts, a line each, as a person would read it.
func (l *Listener) Transcript(texts ...string) string {
	var b strings.Builder
	for _, s := range l.Said() {
		for _, text := range texts {
			if strings.Contains(s.Data, text) || strings.Contains(s.Subject, text) {
				data := s.Data
				if len(data) > 160 {
					data = data[:160] + "…"
				}
				fmt.Fprintf(&b, "%s %s\n", s.Subject, data)
				break
			}
		}
	}
	return b.String()
}

// JetStream connects to the bus at a URL. Call done after use.
func JetStream(t testing.TB, url string) (js jetstream.JetStream, done func()) {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	if js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	return js, conn.Close
}

// HeldEvents is how many events wait in purgatory.
func HeldEvents(t testing.TB, p *Tendril) (n int) {
	t.Helper()
	js, done := JetStream(t, p.NATS)
	defer done()
	held, err := js.KeyValue(Context(t), "grasp-held")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := held.ListKeys(Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for key := range keys.Keys() {
		if key != "mark" { // the writer's
			n++
		}
	}
	return n
}
