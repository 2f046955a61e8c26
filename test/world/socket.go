package world

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/coder/websocket"
)

// Socket is a bare WebSocket to a relay, for what a decent client would not send.
type Socket struct {
	t  testing.TB
	ws *websocket.Conn
}

// Dial opens a socket.
func Dial(t testing.TB, url string) *Socket {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(16 << 20)
	s := &Socket{t, ws}
	t.Cleanup(s.Close)
	return s
}

// Close hangs up.
func (s *Socket) Close() { s.ws.CloseNow() }

// Send sends a message of these elements.
func (s *Socket) Send(elements ...any) {
	s.t.Helper()
	data, err := json.Marshal(elements)
	if err != nil {
		s.t.Fatal(err)
	}
	s.SendText(string(data))
}

// SendText sends anything.
func (s *Socket) SendText(text string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
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
	_, data, err := s.ws.Read(ctx)
	if err != nil {
		return nil, err
	}
	var m []any
	return m, json.Unmarshal(data, &m)
}

// Count asks a relay how many events match (NIP-45).
func Count(t testing.TB, url string, filter any) int {
	t.Helper()
	s := Dial(t, url)
	defer s.Close()
	s.Send("COUNT", "n", filter)
	m := s.Next()
	if m[0] != "COUNT" {
		t.Fatalf("COUNT is answered %v", m)
	}
	return int(m[2].(map[string]any)["count"].(float64))
}
