package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/config"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// TestASecondGatewayTakesACopy: nodes apart, with logins and permissions. The second gateway has
// the index before it has read anything of the log; in its own folder, after a restart, it has it
// still.
func TestASecondGatewayTakesACopy(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := logins.Init(folder, logins.Default()...); err != nil {
		t.Fatal(err)
	}
	server := bustest.WithUsers(t, filepath.Join(folder, logins.UsersFile))
	defer func() {
		for _, line := range server.Refused() {
			t.Errorf("NATS has refused: %s", line)
		}
	}()
	open := func(service, data string) *Node {
		t.Helper()
		s, err := config.Parse("test", []string{"--domain=git.example.com", "--nats-url=" + server.URL, "--relay-data-path=" + data,
			"--nats-login-file=" + logins.LoginFile(folder, service), "--shutdown-wait=10m"})
		if err != nil {
			t.Fatal(err)
		}
		n, err := prepare(service, s, slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err != nil {
			t.Fatal(err)
		}
		n.copyWorth = 50
		if err := n.open(t.Context(), nil, []Service{{Name: service, Provisions: service == proto.UserIngest}}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	run := func(n *Node) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- n.Run(ctx, Service{Name: n.process, Run: func(ctx context.Context, _ *Node) error { <-ctx.Done(); return nil }})
		}()
		return func() {
			t.Helper()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	ingest := open(proto.UserIngest, t.TempDir())
	defer run(ingest)()
	var msgs []*nats.Msg
	for i := range 100 {
		ev := &nostr.Event{PubKey: strings.Repeat("ab", 32), Kind: 1, CreatedAt: nostr.Timestamp(i), Sig: strings.Repeat("0", 128)}
		ev.ID = ev.GetID()
		msgs = append(msgs, &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: []byte(ev.String())})
	}
	head, err := ingest.Bus.PublishBatch(t.Context(), msgs, nil)
	if err != nil {
		t.Fatal(err)
	}
	reach := func(n *Node) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := n.Index.WaitFor(ctx, head); err != nil {
			t.Fatal(err)
		}
	}
	reach(ingest)
	offered(t, server.URL, logins.LoginFile(folder, proto.UserGateway), proto.UserIngest)

	data := t.TempDir()
	first := open(proto.UserGateway, data)
	if got := first.Index.Seq(); got != head {
		t.Errorf("at %d of %d before it runs", got, head)
	}
	run(first)()
	again := open(proto.UserGateway, data)
	if again.Index.Seq() != head || again.Index.Remade() != nil {
		t.Errorf("after a restart: at %d, made anew: %v", again.Index.Seq(), again.Index.Remade())
	}
	defer run(again)()
	// Now ingest may be away: gateways copy from each other.
	second := open(proto.UserGateway, t.TempDir())
	if second.Index.Seq() != head {
		t.Errorf("a second one: at %d", second.Index.Seq())
	}
	answer := httptest.NewRecorder()
	second.Observation.ServeHTTP(answer, httptest.NewRequest("GET", "/readyz", nil))
	if text := answer.Body.String(); !strings.Contains(text, "opening the copy of the index") {
		t.Errorf("before it runs, /readyz says %s", text)
	}
	run(second)()
}

// offered waits until a user offers copies of its index, as somebody sees it who has a login.
func offered(t *testing.T, url, login, by string) {
	t.Helper()
	asker, err := bus.Open(t.Context(), bus.Options{URL: url, LoginFile: login, Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	defer asker.Close()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		_, err := asker.Conn.Request(proto.IndexOffers(by), []byte("{}"), time.Minute)
		switch {
		case err == nil:
			return
		case time.Now().After(deadline) || !errors.Is(err, nats.ErrNoResponders):
			t.Fatal(err)
		}
	}
}

// TestNoCopiesInOneProcess: with the embedded NATS, or without files, nothing is asked or answered.
func TestNoCopiesInOneProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings config.Settings
		services []Service
		copies   bool
	}{
		"apart":         {config.Settings{Bus: config.Bus{NATSURL: "nats://x"}}, []Service{{Name: "gateway"}}, true},
		"in memory":     {config.Settings{Bus: config.Bus{NATSURL: "nats://x"}, Storage: config.Storage{DatabaseBackend: "memory"}}, []Service{{Name: "gateway"}}, false},
		"embedded NATS": {config.Settings{}, []Service{{Name: "gateway"}}, false},
		"others":        {config.Settings{Bus: config.Bus{NATSURL: "nats://x"}}, []Service{{Name: "relayconn"}}, false},
	} {
		c.settings.WorkerName = "me"
		n, err := prepare("test", c.settings, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if copying, err := n.newCopying(c.services); err != nil || (copying != nil) != c.copies {
			t.Errorf("%s: %+v, %v", name, copying, err)
		}
	}
}
