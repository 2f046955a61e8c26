package relay

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip42"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/config"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// change sets those fields of an event that JSON names. The id is that of the event with another
// author too.
func change(t *testing.T, ev *nostr.Event, fields string) {
	t.Helper()
	must(t, ev.UnmarshalJSON([]byte("{"+fields+"}")))
	if strings.Contains(fields, "pubkey") {
		ev.ID = ev.GetID()
	}
}

// TestProve: the fields of an answer are changed before and after it is signed.
func TestProve(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("F64", strings.Repeat("f", 64), "ZERO64", strings.Repeat("0", 64))
	for _, row := range fixture.Rows(`
		as clients write it | wss://git.example.com | | |
		with a slash | wss://git.example.com/ | | |
		without encryption | ws://git.example.com | | |
		another relay | wss://relay.example.com | | | invalid: the event does not name this relay
		another port | wss://git.example.com:7334 | | | invalid: the event does not name this relay
		a host that begins like ours | wss://git.example.com.evil.example | | | invalid: the event does not name this relay
		no tags | | "tags":[] | | invalid: the event does not name the challenge
		tags without values | | "tags":[["challenge"],["relay"]] | | invalid: the event does not name the challenge
		another challenge | | "tags":[["relay","wss://git.example.com"],["challenge","x"]] | | invalid: the event does not name the challenge
		no challenge | | "tags":[["relay","wss://git.example.com"],["challenge",""]] | | invalid: the event does not name the challenge
		another kind | | "kind":1 | | invalid: AUTH takes an event of kind 22242
		ten minutes old | wss://git.example.com | "created_at":1699999400 | |
		ten minutes ahead | wss://git.example.com | "created_at":1700000600 | |
		older | wss://git.example.com | "created_at":1699999399 | | invalid: created_at
		farther | wss://git.example.com | "created_at":1700000601 | | invalid: created_at
		the end of time | wss://git.example.com | "created_at":9223372036854775807 | | invalid: created_at
		another's id | wss://git.example.com | | "id":"ZERO64" | invalid: the id
		another's signature | wss://git.example.com | | "sig":"ZERO64ZERO64" | invalid: the signature
		signed by another author | wss://git.example.com | | "pubkey":"F64" | invalid: the signature`) {
		s, now, want := newProofs("git.example.com", proofWindow), time.Unix(1_700_000_000, 0), row[4]
		ev := nip42.CreateUnsignedAuthEvent(s.challenge, "", row[1])
		ev.CreatedAt = nostr.Timestamp(now.Unix())
		change(t, &ev, row[2])
		must(t, ev.Sign(gonostr.GeneratePrivateKey()))
		change(t, &ev, words.Replace(row[3]))
		got := s.prove(&ev, now)
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", row[0], got, want)
		}
		if proved := want == ""; s.keys[ev.PubKey] != proved || len(s.keys) > 0 != proved {
			t.Errorf("%s: keys %v", row[0], s.keys)
		}
	}
}

func TestKeysAreBounded(t *testing.T) {
	t.Parallel()
	s := newProofs("git.example.com", proofWindow)
	prove := func(secret string) (key, refusal string) {
		ev := nip42.CreateUnsignedAuthEvent(s.challenge, "", "wss://git.example.com")
		must(t, ev.Sign(secret))
		return ev.PubKey, s.prove(&ev, time.Now())
	}
	first := gonostr.GeneratePrivateKey()
	for i := range mostKeys {
		secret := first
		if i > 0 {
			secret = gonostr.GeneratePrivateKey()
		}
		if key, refusal := prove(secret); refusal != "" || !s.keys[key] {
			t.Fatalf("key %d: %q", i+1, refusal)
		}
	}
	if key, refusal := prove(gonostr.GeneratePrivateKey()); !strings.HasPrefix(refusal, "restricted: ") || s.keys[key] {
		t.Errorf("one key more: %q", refusal)
	}
	if _, refusal := prove(first); refusal != "" {
		t.Errorf("the first one again: %q", refusal)
	}
}

// members is the circle of a private service to which nobody belongs.
type members struct{}

func (members) IsPrivate() bool { return true }
func (members) Has(string) bool { return false }
func (members) OnChange(func()) {}

// pipeListener accepts one connection.
type pipeListener struct {
	conns chan net.Conn
	net.Conn
}

func (l *pipeListener) Accept() (net.Conn, error) {
	if conn, open := <-l.conns; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l *pipeListener) Close() error   { return nil }
func (l *pipeListener) Addr() net.Addr { return l.LocalAddr() }

// TestNoProofInTime: a private service closes a connection on which no proof came in 30 s, whatever
// else the client says, and not before.
func TestNoProofInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, connections := slog.New(slog.DiscardHandler), limit.NewFair(10, 10)
		rejected := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rejected"}, []string{"kind", "reason"})
		r := New(Options{Circle: members{}, Domain: "git.example.com", Connections: connections, Log: log, Met: limit.NewMet(log),
			Metrics: NewMetrics(prometheus.NewRegistry(), connections, 10, rejected),
			Limits:  Limits{config.Front{EventsPerMinute: 10, EventsPerMinutePerIP: 10}, Bounds{MessageTime: time.Hour, MaxMessageBytes: 10_000}}})
		near, far := net.Pipe()
		l := &pipeListener{make(chan net.Conn, 1), far}
		l.conns <- far
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.Serve(w, req, "192.0.2.1") })}
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		dial := func(context.Context, string, string) (net.Conn, error) { return near, nil }
		ws, _, err := websocket.Dial(t.Context(), "ws://git.example.com", &websocket.DialOptions{
			HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}})
		must(t, err)
		began := time.Now()
		if _, hello, err := ws.Read(t.Context()); err != nil || !strings.HasPrefix(string(hello), `["AUTH","`) {
			t.Fatalf("the first word is %s, %v", hello, err)
		}
		time.AfterFunc(29*time.Second, func() { ws.Write(t.Context(), websocket.MessageText, []byte(`["REQ","a",{}]`)) })
		var last string
		for err == nil {
			var said []byte
			if _, said, err = ws.Read(t.Context()); err == nil {
				last = string(said)
			}
		}
		if after := time.Since(began); after != 30*time.Second || websocket.CloseStatus(err) != websocket.StatusPolicyViolation ||
			!strings.HasPrefix(last, `["CLOSED","a","auth-required: `) {
			t.Errorf("the connection ends after %s with %v, and the last word is %s", after, err, last)
		}
		ws.CloseNow()
		close(l.conns)
		must(t, server.Close())
		<-served
	})
}
