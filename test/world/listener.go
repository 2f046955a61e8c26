package world

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
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
	conn, err := nats.Connect(url, nats.Timeout(fixture.Patience))
	must(t, err)
	t.Cleanup(conn.Close)
	l := &Listener{Conn: conn}
	if _, err := conn.Subscribe("grasp.>", func(m *nats.Msg) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.said = append(l.said, Said{m.Subject, m.Header, string(m.Data)})
	}); err != nil {
		t.Fatal(err)
	}
	must(t, conn.Flush())
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

// JetStream connects to the bus at a URL. Call done after use.
func JetStream(t testing.TB, url string) (js jetstream.JetStream, done func()) {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(fixture.Patience))
	must(t, err)
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
	must(t, err)
	keys, err := held.ListKeys(Context(t))
	must(t, err)
	for key := range keys.Keys() {
		if key != "mark" { // the writer's
			n++
		}
	}
	return n
}

// Claims is who claims what of a group on the bus: name of the key → claim.
func Claims(ctx context.Context, js jetstream.JetStream, group string) (claims map[string]proto.Claim, err error) {
	claims = map[string]proto.Claim{}
	err = bus.Read(ctx, js, bus.Reading{Stream: proto.KVStream(proto.BucketClaims)}, func(m bus.Message) {
		of, name, wrong := proto.ParseClaimKey(strings.TrimPrefix(m.Subject, proto.KVSubject(proto.BucketClaims, "")))
		var c proto.Claim
		switch {
		case wrong != nil || of != group:
		case m.Deletes() || json.Unmarshal(m.Data, &c) != nil:
			delete(claims, name)
		default:
			claims[name] = c
		}
	})
	return claims, err
}
