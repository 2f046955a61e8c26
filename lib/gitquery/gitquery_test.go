package gitquery_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/logins"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

var (
	must  = fixture.Must
	quiet = slog.New(slog.DiscardHandler)
	owner = strings.Repeat("a1", 32)
)

// server is a NATS server with a login for everybody.
type server struct {
	*nettest.NATS
	dir string
}

func newServer(t *testing.T) *server {
	t.Parallel()
	dir := t.TempDir()
	must(t, logins.Init(dir, append(logins.Default(), proto.UserTendril)...))
	return &server{nettest.NewNATS(t, filepath.Join(dir, logins.UsersFile)), dir}
}

func (s *server) connect(t *testing.T, user string) *nats.Conn {
	t.Helper()
	b, err := bus.Look(bus.Options{Name: user, URL: s.URL, LoginFile: logins.LoginFile(s.dir, user)}, fixture.Patience)
	must(t, err)
	t.Cleanup(b.Close)
	return b.Conn
}

func (s *server) client(t *testing.T, user string) gitquery.Client {
	return gitquery.Client{Conn: s.connect(t, user), Patience: fixture.Patience}
}

func ref(identifier string) nostr.RepoRef {
	return nostr.RepoRef{PubKey: owner, Identifier: identifier}
}

// serveAll answers about all shards.
func serveAll(t *testing.T, conn *nats.Conn, answers gitquery.Answers) (stops []func()) {
	s := gitquery.NewServer(conn, quiet, answers)
	for shard := range proto.Shards {
		stop, err := s.Serve(t.Context(), shard)
		must(t, err)
		stops = append(stops, stop)
	}
	must(t, conn.Flush())
	return stops
}

// TestEachLoginIsAnswered: worker, operator and gateway are in accounts of their own, or in that of
// the core with other services. The gateway may ask for nothing but what a page shows.
func TestEachLoginIsAnswered(t *testing.T) {
	for _, worker := range []string{proto.UserPurgatory, proto.UserTendril} {
		t.Run(worker, func(t *testing.T) {
			s := newServer(t)
			serveAll(t, s.connect(t, worker), gitquery.Answers{
				Waits: func(_ context.Context, ref nostr.RepoRef) (proto.RepoWaitsAnswer, error) {
					return proto.RepoWaitsAnswer{Here: ref.Identifier == "x", Waits: &proto.Waits{Named: 7}}, nil
				},
				Remove: func(_ context.Context, ref nostr.RepoRef) (proto.RepoStatus, error) {
					return proto.RepoStatus{Ref: ref.String()}, nil
				},
			})
			for _, user := range []string{proto.UserOperator, proto.UserGateway, proto.UserTendril} {
				if a, err := s.client(t, user).Waits(t.Context(), ref("x")); err != nil || !a.Here || a.Waits.Named != 7 {
					t.Errorf("%s: %+v, %v", user, a, err)
				}
			}
			if s, err := s.client(t, proto.UserOperator).Remove(t.Context(), ref("x")); err != nil || s.Ref != ref("x").String() {
				t.Errorf("%+v, %v", s, err)
			}
			brief, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := s.client(t, proto.UserGateway).Remove(brief, ref("x")); err == nil {
				t.Error("a gateway removes repositories")
			}
		})
	}
}

// TestNoWorker: who asks where no worker holds the shard is told so, waits for one that comes, and
// is passed on by one that has just let the shard go.
func TestNoWorker(t *testing.T) {
	s := newServer(t)
	conn := s.connect(t, proto.UserPurgatory)
	for _, user := range []string{proto.UserOperator, proto.UserGateway} {
		client := s.client(t, user)
		client.Patience = time.Millisecond
		if _, err := client.Waits(t.Context(), ref("x")); !errors.Is(err, gitquery.ErrNoWorker) {
			t.Errorf("%s: %v", user, err)
		}
	}
	if list, err := (gitquery.Client{Conn: s.connect(t, proto.UserOperator)}).List(t.Context()); !errors.Is(err, gitquery.ErrNoWorker) || list == nil {
		t.Errorf("%v, %v", list, err)
	}
	asked := make(chan error, 1)
	go func() {
		_, err := s.client(t, proto.UserGateway).Waits(t.Context(), ref("x"))
		asked <- err
	}()
	moved := 0
	serveAll(t, conn, gitquery.Answers{Waits: func(context.Context, nostr.RepoRef) (a proto.RepoWaitsAnswer, err error) {
		if moved++; moved < 3 {
			err = fmt.Errorf("too late: %w", gitquery.ErrMoved)
		}
		return a, err
	}})
	must(t, <-asked)
	if moved != 3 {
		t.Errorf("asked %d times, want 3", moved)
	}
}

// TestPages: a list and references come whole however many there are, and no message is large.
func TestPages(t *testing.T) {
	s := newServer(t)
	const repos, references = 300, 9000
	long := strings.Repeat("x", 900)
	var names []proto.RepoReference
	for n := range references {
		names = append(names, proto.RepoReference{Name: fmt.Sprintf("refs/tags/%05d", n), Object: owner})
	}
	var largest atomic.Int64 // shards are asked side by side
	serveAll(t, s.connect(t, proto.UserPurgatory), gitquery.Answers{
		List: func(_ context.Context, shard int, after string) (a proto.RepoListAnswer, err error) {
			var all []proto.RepoStatus
			for n := range repos {
				if shard == 7 {
					all = append(all, proto.RepoStatus{Ref: fmt.Sprintf("30617:%s:%04d%s", owner, n, long)})
				}
			}
			a.Repos, a.More = gitquery.Page(all, func(s proto.RepoStatus) string { return s.Ref }, after)
			if shard == 7 {
				largest.Store(max(largest.Load(), int64(len(a.Repos)))) // its pages come one after the other
			}
			return a, nil
		},
		References: func(_ context.Context, _ nostr.RepoRef, q proto.RepoReferencesQuestion) (a proto.RepoReferencesAnswer, err error) {
			a.References, a.More = gitquery.Page(names, func(r proto.RepoReference) string { return r.Name }, q.After)
			return a, nil
		},
	})
	client := s.client(t, proto.UserOperator)
	list, err := client.List(t.Context())
	if err != nil || len(list) != repos || largest.Load() > int64(proto.MaxRepoAnswer/len(long)) {
		t.Errorf("%d repositories, %v; at most %d in a page", len(list), err, largest.Load())
	}
	pages, last := 0, ""
	got := 0
	for page, err := range client.References(t.Context(), ref("x")) {
		must(t, err)
		pages++
		for _, r := range page.References {
			if r.Name <= last {
				t.Fatalf("%s comes after %s", r.Name, last)
			}
			last = r.Name
		}
		got += len(page.References)
	}
	if got != references || pages < 3 {
		t.Errorf("%d references in %d pages", got, pages)
	}
}

// TestBounds: the deadline of the asker ends the work, what is no question is refused with a
// sentence, and of very many questions some are refused and none is answered twice.
func TestBounds(t *testing.T) {
	s := newServer(t)
	began, ended, free := make(chan bool, 1000), make(chan error, 1000), make(chan bool)
	conn := s.connect(t, proto.UserPurgatory)
	serveAll(t, conn, gitquery.Answers{
		Show: func(ctx context.Context, _ nostr.RepoRef) (a proto.RepoStatus, err error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return a, errors.New("it took too long")
		},
		Waits: func(context.Context, nostr.RepoRef) (a proto.RepoWaitsAnswer, err error) {
			began <- true
			<-free
			return a, nil
		},
	})
	client := s.client(t, proto.UserOperator)
	brief, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.Show(brief, ref("x")); err == nil {
		t.Error("an answer")
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the worker went on: %v", err)
	}
	// One message after the other, as a client would not send them.
	raw := s.connect(t, proto.UserOperator)
	inbox := raw.NewInbox()
	answers, err := raw.SubscribeSync(inbox)
	must(t, err)
	ask := func(shard int, verb proto.RepoVerb, question string) {
		must(t, raw.PublishMsg(&nats.Msg{Subject: proto.RepoSubject(proto.ShardName(shard), verb), Reply: inbox, Data: []byte(question)}))
	}
	shard := proto.ShardOf("x")
	for question, want := range map[string]string{
		`"`: "unexpected end", `{"ref":"x"}`: "an address is", `{"ref":"` + ref("x").String() + `"}`: "another shard", `[]`: "cannot unmarshal",
	} {
		other := shard
		if want == "another shard" {
			other = (shard + 1) % proto.Shards
		}
		ask(other, proto.RepoShow, question)
		m, err := answers.NextMsg(fixture.Patience)
		must(t, err)
		if code, why := m.Header.Get(micro.ErrorCodeHeader), m.Header.Get(micro.ErrorHeader); code != proto.QueryBad || !strings.Contains(why, want) {
			t.Errorf("%s: %s %q, want %q", question, code, why, want)
		}
	}
	const many = 300
	for range many {
		ask(shard, proto.RepoWaits, `{"ref":"`+ref("x").String()+`"}`)
	}
	for range many - 256 {
		m, err := answers.NextMsg(fixture.Patience)
		must(t, err)
		if code := m.Header.Get(micro.ErrorCodeHeader); code != proto.RepoBusy {
			t.Fatalf("%q %s", code, m.Data)
		}
	}
	if len(began) > 4 {
		t.Errorf("%d are worked on at once", len(began))
	}
	close(free)
	for range 256 {
		m, err := answers.NextMsg(fixture.Patience)
		must(t, err)
		if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
			t.Fatalf("%q", code)
		}
	}
}
