package logins_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus/bustest"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

// server is a NATS server with everybody's logins and all streams.
type server struct {
	*bustest.NATS
	dir string
}

func newServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	if err := logins.Init(dir, append(logins.Default(), proto.UserTendril, proto.UserImport)...); err != nil {
		t.Fatal(err)
	}
	s := &server{bustest.WithUsers(t, filepath.Join(dir, logins.UsersFile)), dir}
	js := s.jetStream(t, proto.UserIngest)
	for _, cfg := range proto.Streams(proto.DefaultSizing()) {
		if _, err := js.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	for stream, consumers := range proto.Consumers(proto.DefaultSizing()) {
		for _, cfg := range consumers {
			if _, err := js.CreateOrUpdateConsumer(t.Context(), stream, cfg); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

func (s *server) login(t *testing.T, user string) logins.Login {
	t.Helper()
	login, err := logins.Read(logins.LoginFile(s.dir, user))
	if err != nil {
		t.Fatal(err)
	}
	return login
}

func (s *server) connect(t *testing.T, user string) *nats.Conn {
	t.Helper()
	login := s.login(t, user)
	conn, err := nats.Connect(s.URL, nats.Timeout(time.Minute), nats.UserInfo(login.User, login.Password), nats.CustomInboxPrefix(proto.InboxPrefix(user)),
		nats.SkipSubjectValidation(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func (s *server) jetStream(t *testing.T, user string) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.connect(t, user))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// refuses reports whether the server refuses something that a connection does.
func (s *server) refuses(t *testing.T, conn *nats.Conn, do func() error) bool {
	t.Helper()
	before := len(s.Refused())
	if err := do(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return len(s.Refused()) > before
}

// Who may publish to a subject: the users, in the order of proto.Users without "tendril" and
// "import".
const (
	nobody   = ""
	everyone = "gateway ingest purgatory discovery relayconn operator"
	services = "gateway ingest purgatory discovery relayconn"
)

// TestWhoMayPublish tries every subject as every user.
func TestWhoMayPublish(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conns := map[string]*nats.Conn{}
	for _, user := range strings.Fields(everyone) {
		conns[user] = s.connect(t, user)
	}
	for _, c := range []struct{ subject, who string }{
		{"grasp.candidate.user", "gateway"},
		{"grasp.candidate.release", "purgatory"},
		{"grasp.candidate.sync.live", "relayconn"},
		{"grasp.candidate.sync.historic", "relayconn"},
		{"grasp.candidate.sync.daily", "relayconn"},
		{"grasp.event.1.a.b", "ingest"},
		{"grasp.mark.events", "ingest"},
		{"grasp.rejected.1.a", "ingest"},
		{"grasp.verdict.someone", "ingest"},
		{"grasp.writer.turn", "ingest"},
		{"grasp.target.r.example.com", "discovery"},
		{"grasp.roots.aa.repo", "discovery"},
		{"$JS.API.STREAM.MSG.GET.GRASP_TARGETS", "discovery relayconn operator"},
		{"grasp.git.repo.pushed", "purgatory"},
		{"grasp.query.ids", "operator"},
		{"grasp.query.known", "purgatory discovery relayconn operator"},
		{"grasp.query.events", "purgatory discovery relayconn operator"},
		{"grasp.repo.list.07", "operator"},
		{"grasp.repo.remove.07", "operator"},
		{"grasp.repo.explode.07", nobody},
		{"grasp.repo.answer.x", "purgatory"},
		{"grasp.held.00.a.1.b", nobody},
		{"grasp.claim.purgatory.00", nobody},
		{"$KV.grasp-held.00.a.1.b", "ingest"},
		{"$KV.grasp-held.mark", "ingest"},
		{"$KV.grasp-relays.r.example.com", "relayconn"},
		{"$KV.grasp-claims.relayconn.r.example.com", "relayconn"},
		{"$KV.grasp-claims.purgatory.00", "purgatory"},
		{"$KV.grasp-claims.other.x", nobody},
		{"$KV.grasp-workers.relayconn.a", "relayconn"},
		{"$KV.grasp-workers.purgatory.a", "purgatory"},
		{"$KV.grasp-usage.events.author.YQ", "ingest purgatory"},

		// Streams are made and changed by ingest, and emptied or deleted by nobody.
		{"$JS.API.STREAM.CREATE.GRASP_EVENTS", "ingest"},
		{"$JS.API.STREAM.UPDATE.GRASP_EVENTS", "ingest"},
		{"$JS.API.STREAM.CREATE.OTHER", nobody},
		{"$JS.API.STREAM.DELETE.GRASP_EVENTS", nobody},
		{"$JS.API.STREAM.DELETE.GRASP_CANDIDATES", "ingest"},
		{"$JS.API.STREAM.PURGE.GRASP_EVENTS", nobody},
		{"$JS.API.STREAM.MSG.DELETE.GRASP_EVENTS", nobody},
		{"$JS.API.STREAM.RESTORE.GRASP_EVENTS", "ingest"},
		{"$JS.API.STREAM.SNAPSHOT.GRASP_EVENTS", "operator"},
		{"$JS.API.STREAM.LEADER.STEPDOWN.GRASP_EVENTS", nobody},
		{"$JS.API.STREAM.PEER.REMOVE.GRASP_EVENTS", nobody},
		{"$JS.API.META.LEADER.STEPDOWN", nobody},
		{"$JS.API.SERVER.REMOVE", nobody},
		{"$JS.API.ACCOUNT.PURGE.$G", nobody},
		{"$JS.API.ACCOUNT.STREAM.MOVE.$G.GRASP_EVENTS", nobody},
		{"$SYS.REQ.SERVER.PING", nobody},
		{"$JS.API.INFO", "operator ingest"},
		{"$JS.API.STREAM.LIST", "operator"},
		{"$JS.API.STREAM.NAMES", "operator"},
		{"$JS.API.STREAM.INFO.GRASP_EVENTS", everyone},
		{"$JS.API.STREAM.MSG.GET.GRASP_EVENTS", "gateway ingest purgatory discovery operator"},
		{"$JS.API.STREAM.MSG.GET.GRASP_CANDIDATES_USER", "operator"},

		{"$JS.API.DIRECT.GET.KV_grasp-held.>", "ingest purgatory discovery operator"},
		{"$JS.API.DIRECT.GET.KV_grasp-claims.$KV.grasp-claims.purgatory.00", "purgatory operator"},
		{"$JS.API.DIRECT.GET.KV_grasp-relays.$KV.grasp-relays.r.example.com", "relayconn operator"},

		// Consumers that are left behind, and those of candidates and of the turn, are ingest's.
		{"$JS.API.CONSUMER.CREATE.GRASP_EVENTS.any", "gateway ingest purgatory discovery operator"},
		{"$JS.API.CONSUMER.DURABLE.CREATE.GRASP_EVENTS.any", nobody},
		{"$JS.API.CONSUMER.CREATE.GRASP_TARGETS.any", "discovery relayconn operator"},
		{"$JS.API.CONSUMER.CREATE.GRASP_REJECTED.any", "ingest operator"},
		{"$JS.API.CONSUMER.CREATE.KV_grasp-held.any", "ingest purgatory discovery operator"},
		{"$JS.API.CONSUMER.CREATE.KV_grasp-held.any.$KV.grasp-held.>", "ingest purgatory discovery operator"},
		{"$JS.API.CONSUMER.CREATE.KV_grasp-relays.any", "operator"},
		{"$JS.API.CONSUMER.CREATE.KV_grasp-claims.any.$KV.grasp-claims.relayconn.>", "relayconn operator"},
		{"$JS.API.CONSUMER.CREATE.KV_grasp-claims.any.$KV.grasp-claims.purgatory.>", "gateway purgatory operator"},
		{"$JS.API.CONSUMER.CREATE.GRASP_CANDIDATES_USER.ingest-user", "ingest"},
		{"$JS.API.CONSUMER.CREATE.GRASP_CANDIDATES_USER.another", nobody},
		{"$JS.API.CONSUMER.CREATE.GRASP_WRITER.ingest-turn", "ingest"},
		{"$JS.API.CONSUMER.CREATE.GRASP_WRITER.another", nobody},
		{"$JS.API.CONSUMER.MSG.NEXT.GRASP_CANDIDATES_SYNC.ingest-sync", "ingest"},
		{"$JS.API.CONSUMER.MSG.NEXT.GRASP_WRITER.ingest-turn", "ingest"},
		{"$JS.API.CONSUMER.UNPIN.GRASP_WRITER.ingest-turn", "ingest"},
		{"$JS.API.CONSUMER.DELETE.GRASP_WRITER.ingest-turn", nobody},
		{"$JS.API.CONSUMER.DELETE.GRASP_CANDIDATES_USER.ingest-user", nobody},
		{"$JS.API.CONSUMER.PAUSE.GRASP_CANDIDATES_USER.ingest-user", nobody},
		{"$JS.API.CONSUMER.RESET.GRASP_CANDIDATES_USER.ingest-user", nobody},
		{"$JS.API.CONSUMER.LEADER.STEPDOWN.GRASP_WRITER.ingest-turn", nobody},
		{"$JS.API.CONSUMER.DELETE.GRASP_EVENTS.any", "gateway ingest purgatory discovery"},
		{"$JS.API.CONSUMER.LIST.GRASP_WRITER", "operator"},
		{"$JS.ACK.GRASP_CANDIDATES_USER.ingest-user.1.1.1.1.0", "ingest"},
		{"$JS.ACK.GRASP_EVENTS.any.1.1.1.1.0", "gateway ingest"}, // which says nothing to anybody
		{"$JS.ACK.GRASP_WRITER.ingest-turn.1.1.1.1.0", "ingest"},

		{"_INBOX.gateway.x", nobody},
		{"_INBOX.relayconn.x", nobody},
		{"$SRV.PING", "operator"},
		{"other", nobody},
	} {
		for _, user := range strings.Fields(everyone) {
			may := strings.Contains(" "+c.who+" ", " "+user+" ")
			refused := s.refuses(t, conns[user], func() error { return conns[user].Publish(c.subject, nil) })
			if refused == may {
				t.Errorf("%s to %s: refused %t, want %t", user, c.subject, refused, !may)
			}
		}
	}
}

// TestWhoMayListen tries to subscribe: everybody hears what is said to them, and only the operator
// hears everything.
func TestWhoMayListen(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, c := range []struct{ subject, who string }{
		{">", "operator"},
		{"grasp.>", "operator"},
		{"grasp.candidate.user", "operator"},
		{"grasp.git.>", "operator"},
		{"grasp.verdict.x", "gateway purgatory relayconn operator"},
		{"grasp.query.ids", "ingest operator"},
		{"grasp.query.known", "gateway ingest operator"},
		{"grasp.query.events", "gateway ingest operator"},
		{"grasp.repo.show.*", "purgatory operator"},
		{"grasp.repo.answer.x", "operator"},
		{"$JS.API.>", "operator"},
		{"$JS.EVENT.ADVISORY.>", "operator"},
		{"$SRV.PING", "gateway ingest operator"},
		{"_INBOX.>", "operator"},
		{"_INBOX.gateway.>", "gateway operator"},
		{"_INBOX.ingest.>", "ingest operator"},
		{"_INBOX.purgatory.>", "purgatory operator"},
		{"_INBOX.discovery.>", "discovery operator"},
		{"_INBOX.relayconn.>", "relayconn operator"},
		{"_INBOX.tendril.>", "operator"},
	} {
		for _, user := range strings.Fields(everyone) {
			may := strings.Contains(" "+c.who+" ", " "+user+" ")
			conn := s.connect(t, user)
			refused := s.refuses(t, conn, func() error {
				_, err := conn.SubscribeSync(c.subject)
				return err
			})
			if refused == may {
				t.Errorf("%s listens to %s: refused %t, want %t", user, c.subject, refused, !may)
			}
			conn.Close()
		}
	}
}

// TestTendrilMayWhatServicesMay: the login of a process with several services is enough for each.
func TestTendrilMayWhatServicesMay(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conn := s.connect(t, proto.UserTendril)
	for _, user := range strings.Fields(services) {
		for _, subject := range proto.PermissionsOf(user).Publish {
			subject = strings.ReplaceAll(strings.ReplaceAll(subject, "*", "x"), ">", "y")
			if s.refuses(t, conn, func() error { return conn.Publish(subject, []byte("x")) }) {
				t.Errorf("it may not publish to %s, as %s may", subject, user)
			}
		}
	}
}

// TestAnswers: ingest may answer whom it was asked by, as often as it takes, and nobody else.
func TestAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ingest, operator := s.connect(t, proto.UserIngest), s.connect(t, proto.UserOperator)
	asked, err := ingest.SubscribeSync(proto.SubjectQueryIDs)
	if err != nil {
		t.Fatal(err)
	}
	if err := ingest.Flush(); err != nil {
		t.Fatal(err)
	}
	inbox := operator.NewInbox()
	answers, err := operator.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := operator.PublishRequest(proto.SubjectQueryIDs, inbox, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	question, err := asked.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := question.Respond(nil); err != nil {
			t.Fatal(err)
		}
		if _, err := answers.NextMsg(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if !s.refuses(t, ingest, func() error { return ingest.Publish(inbox+"x", nil) }) {
		t.Error("ingest may publish to inboxes that did not ask")
	}
}

// TestRepliesAreNotChecked states what NATS leaves open, as docs/security.md says: to which subject
// the answer to a request goes is not checked. If this fails, NATS has become stricter: say so
// there.
func TestRepliesAreNotChecked(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conn, js := s.connect(t, proto.UserRelayconn), s.jetStream(t, proto.UserRelayconn)
	if _, err := js.Publish(t.Context(), proto.KVSubject(proto.BucketRelays, "x"), []byte("mine")); err != nil {
		t.Fatal(err)
	}
	get := "$JS.API.DIRECT.GET.KV_grasp-relays." + proto.KVSubject(proto.BucketRelays, "x")
	if s.refuses(t, conn, func() error { return conn.PublishRequest(get, "grasp.event.1.a.b", nil) }) {
		t.Fatal("the request is refused")
	}
	log, err := s.jetStream(t, proto.UserOperator).Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		info, err := log.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.LastSeq > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the answer did not come into the log: NATS checks reply subjects now")
		}
	}
}

// TestImportOnlyOffersEvents: the login of `tendril import` reaches the lane of older events, and
// nothing else.
func TestImportOnlyOffersEvents(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conn := s.connect(t, proto.UserImport)
	for subject, may := range map[string]bool{
		"grasp.candidate.sync.historic": true, "$JS.API.STREAM.INFO.GRASP_CANDIDATES_SYNC": true,
		"grasp.candidate.sync.live": false, "grasp.candidate.release": false, "grasp.candidate.user": false,
		"grasp.event.1.a.b": false, "grasp.verdict.x": false, "$KV.grasp-held.mark": false,
		"$JS.API.STREAM.INFO.GRASP_EVENTS": false, "$JS.API.CONSUMER.CREATE.GRASP_EVENTS.any": false,
		"$JS.API.STREAM.PURGE.GRASP_CANDIDATES_SYNC": false,
	} {
		if refused := s.refuses(t, conn, func() error { return conn.Publish(subject, nil) }); refused == may {
			t.Errorf("publish to %s: refused %t, want %t", subject, refused, !may)
		}
	}
	for subject, may := range map[string]bool{
		"grasp.verdict.x": true, "_INBOX.import.x": true, "_INBOX.gateway.x": false, "grasp.event.>": false, "grasp.held.>": false,
	} {
		refused := s.refuses(t, conn, func() error {
			_, err := conn.SubscribeSync(subject)
			return err
		})
		if refused == may {
			t.Errorf("listen to %s: refused %t, want %t", subject, refused, !may)
		}
	}
}
