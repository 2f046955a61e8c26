package world

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
)

// Socket is a bare WebSocket to a relay, for what a decent client would not send.
type Socket struct {
	t  testing.TB
	ws *outside.Socket
}

// Dial opens a socket.
func Dial(t testing.TB, url string) *Socket { return DialFrom(t, url, "") }

// DialFrom opens a socket as from an address, for a Tendril that trusts its proxy. An empty address
// says nothing of where it comes from.
func DialFrom(t testing.TB, url, address string) *Socket {
	t.Helper()
	s, err := TryDialFrom(t, url, address)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TryDialFrom is DialFrom for what may be refused.
func TryDialFrom(t testing.TB, url, address string) (*Socket, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	header := http.Header{}
	if address != "" {
		header.Set("X-Forwarded-For", address)
	}
	ws, err := outside.Dial(ctx, url, header)
	if err != nil {
		return nil, err
	}
	s := &Socket{t, ws}
	t.Cleanup(s.Close)
	return s, nil
}

// Close hangs up.
func (s *Socket) Close() { s.ws.Close() }

// Send sends a message of these elements.
func (s *Socket) Send(elements ...any) {
	s.t.Helper()
	if err := s.TrySend(elements...); err != nil {
		s.t.Fatalf("send: %v", err)
	}
}

// TrySend is Send on a connection that may have been closed.
func (s *Socket) TrySend(elements ...any) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	return s.ws.Send(ctx, elements...)
}

// SendText sends anything.
func (s *Socket) SendText(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.ws.SendText(ctx, text); err != nil {
		s.t.Fatalf("send: %v", err)
	}
}

// Next is the next message.
func (s *Socket) Next() []any {
	s.t.Helper()
	m, err := s.TryNext()
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return m
}

// TryNext is the next message, or why none came.
func (s *Socket) TryNext() ([]any, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	raw, err := s.ws.Next(ctx)
	if err != nil {
		return nil, err
	}
	m := make([]any, len(raw))
	for i, element := range raw {
		if err := json.Unmarshal(element, &m[i]); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Count asks a relay how many events match (NIP-45). The test fails if the relay does not know
// exactly, as ours does not of 100,000 and more; for those there is [CountAll].
func Count(t testing.TB, url string, filter any) int {
	t.Helper()
	n, exact := count(t, url, filter)
	if !exact {
		t.Fatalf("about %d events match %v; the relay stopped counting", n, filter)
	}
	return n
}

// CountAll asks a relay how many events match, however many: where it does not count so far, in
// smaller pieces of time.
func CountAll(t testing.TB, url string, filter nostr.Filter) int {
	t.Helper()
	n, exact := count(t, url, filter)
	if exact {
		return n
	}
	from, to := nostr.Timestamp(0), nostr.Timestamp(1<<32)
	if filter.Since != nil {
		from = *filter.Since
	}
	if filter.Until != nil {
		to = *filter.Until
	}
	if from == to {
		t.Fatalf("%d events and more of one second match %v; the relay stopped counting", n, filter)
	}
	middle := from + (to-from)/2
	after := middle + 1
	older, newer := filter, filter
	older.Since, older.Until = &from, &middle
	newer.Since, newer.Until = &after, &to
	return CountAll(t, url, older) + CountAll(t, url, newer)
}

// count asks for one count, and whether it is exact.
func count(t testing.TB, url string, filter any) (n int, exact bool) {
	t.Helper()
	s := Dial(t, url)
	defer s.Close()
	s.Send("COUNT", "n", filter)
	m := s.Next()
	if m[0] != "COUNT" {
		t.Fatalf("COUNT is answered %v", m)
	}
	answer := m[2].(map[string]any)
	approximate, _ := answer["approximate"].(bool)
	return int(answer["count"].(float64)), !approximate
}
