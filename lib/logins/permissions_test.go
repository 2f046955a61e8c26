package logins_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/logins"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

// server is a NATS server with everybody's logins and all streams.
type server struct {
	*nettest.NATS
	dir string
}

func newServer(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	must(t, logins.Init(dir, append(logins.Default(), proto.UserTendril, proto.UserImport)...))
	s := &server{nettest.NewNATS(t, filepath.Join(dir, logins.UsersFile)), dir}
	b, err := bus.Open(t.Context(), bus.Options{URL: s.URL, LoginFile: logins.LoginFile(dir, proto.UserIngest), Sizing: proto.DefaultSizing(), Provisions: true})
	must(t, err)
	b.Close()
	return s
}

func (s *server) connect(t *testing.T, user string) *nats.Conn {
	t.Helper()
	login := read(t, s.dir, user)
	conn, err := nats.Connect(s.URL, nats.Timeout(time.Minute), nats.UserInfo(login.User, login.Password), nats.CustomInboxPrefix(proto.InboxPrefix(user)),
		nats.SkipSubjectValidation(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// refuses reports whether the server refuses something that a connection does.
func (s *server) refuses(t *testing.T, conn *nats.Conn, do func() error) bool {
	t.Helper()
	before := len(s.Refused())
	must(t, do())
	must(t, conn.Flush())
	return len(s.Refused()) > before
}

// Who may publish to a subject: the users, in the order of proto.Users without "tendril".
const (
	none     = ""
	all      = everyone + " import"
	everyone = "gateway ingest purgatory discovery relayconn operator"
	services = "gateway ingest purgatory discovery relayconn"
)

// TestWhoMayPublish tries every subject as every user. Streams are made and changed by ingest, and
// emptied or deleted by none; consumers of candidates are ingest's.
func TestWhoMayPublish(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	conns := map[string]*nats.Conn{}
	for _, user := range strings.Fields(all) {
		conns[user] = s.connect(t, user)
	}
	for who, subjects := range map[string]string{
		"gateway":          "grasp.candidate.user grasp.manage",
		"gateway operator": "grasp.repo.07.waits grasp.repo.07.ages",
		"purgatory": "grasp.candidate.release grasp.git.repo.pushed $KV.grasp-claims.purgatory.00 " +
			"$KV.grasp-workers.purgatory.a",
		"relayconn": "grasp.candidate.sync.live grasp.candidate.sync.historic grasp.candidate.sync.daily $KV.grasp-relays.r.example.com " +
			"$KV.grasp-claims.relayconn.r.example.com $KV.grasp-workers.relayconn.a",
		"import": "grasp.candidate.import",
		"ingest": "grasp.event.1.a.b grasp.ephemeral.20001.a grasp.fetch grasp.mark.events grasp.rejected.1.a grasp.verdict.someone $KV.grasp-held.00.a.1.b " +
			"$KV.grasp-held.mark $KV.grasp-usage.events.author.YQ $JS.API.STREAM.CREATE.GRASP_EVENTS $JS.API.STREAM.UPDATE.GRASP_EVENTS " +
			"$JS.API.STREAM.RESTORE.GRASP_EVENTS $JS.API.CONSUMER.CREATE.GRASP_CANDIDATES_USER.ingest-user " +
			"$JS.API.CONSUMER.CREATE.GRASP_CANDIDATES_LIVE.ingest-live " +
			"$JS.API.CONSUMER.MSG.NEXT.GRASP_CANDIDATES_SYNC.ingest-sync " +
			"$JS.API.CONSUMER.MSG.NEXT.GRASP_CANDIDATES_LIVE.ingest-live $KV.grasp-claims.ingest.log " +
			"$JS.ACK.GRASP_CANDIDATES_USER.ingest-user.1.1.1.1.0 $JS.ACK.GRASP_EVENTS.any.1.1.1.1.0 " +
			"$JS.ACK.GRASP_CANDIDATES_LIVE.ingest-live.1.1.1.1.0",
		"discovery":                    "grasp.target.r.example.com",
		"discovery relayconn operator": "$JS.API.STREAM.MSG.GET.GRASP_TARGETS",
		services:                       "grasp.progress",
		"operator": "grasp.why grasp.repo.07.list grasp.repo.07.remove $JS.API.STREAM.SNAPSHOT.GRASP_EVENTS " +
			"$JS.API.STREAM.LIST $JS.API.STREAM.NAMES $JS.API.STREAM.MSG.GET.GRASP_CANDIDATES_USER " +
			"$JS.API.CONSUMER.CREATE.GRASP_EVENTS.any $JS.API.CONSUMER.CREATE.GRASP_TARGETS.any " +
			"$JS.API.CONSUMER.CREATE.GRASP_REJECTED.any $JS.API.CONSUMER.CREATE.KV_grasp-held.any " +
			"$JS.API.CONSUMER.CREATE.KV_grasp-held.any.$KV.grasp-held.> $JS.API.CONSUMER.CREATE.KV_grasp-relays.any " +
			"$JS.API.CONSUMER.CREATE.KV_grasp-claims.any.$KV.grasp-claims.relayconn.> " +
			"$JS.API.CONSUMER.CREATE.KV_grasp-claims.any.$KV.grasp-claims.purgatory.> " +
			"$JS.API.CONSUMER.LIST.GRASP_CANDIDATES_LIVE $SRV.PING",
		"purgatory discovery relayconn operator": "grasp.query.events",
		none: "grasp.repo.07.explode grasp.held.00.a.1.b grasp.claim.purgatory.00 $KV.grasp-claims.other.x " +
			"$JS.API.STREAM.CREATE.OTHER $JS.API.STREAM.DELETE.GRASP_EVENTS $JS.API.STREAM.DELETE.GRASP_CANDIDATES " +
			"$JS.API.STREAM.PURGE.GRASP_EVENTS $JS.API.STREAM.MSG.DELETE.GRASP_EVENTS " +
			"$JS.API.STREAM.LEADER.STEPDOWN.GRASP_EVENTS $JS.API.STREAM.PEER.REMOVE.GRASP_EVENTS " +
			"$JS.API.META.LEADER.STEPDOWN $JS.API.SERVER.REMOVE $JS.API.ACCOUNT.PURGE.$G " +
			"$JS.API.ACCOUNT.STREAM.MOVE.$G.GRASP_EVENTS $SYS.REQ.SERVER.PING " +
			"$JS.API.CONSUMER.DURABLE.CREATE.GRASP_EVENTS.any $JS.API.CONSUMER.CREATE.GRASP_CANDIDATES_USER.another " +
			"$JS.API.CONSUMER.CREATE.GRASP_CANDIDATES_LIVE.another " +
			"$JS.API.CONSUMER.DELETE.GRASP_CANDIDATES_LIVE.ingest-live " +
			"$JS.API.CONSUMER.DELETE.GRASP_CANDIDATES_USER.ingest-user " +
			"$JS.API.CONSUMER.PAUSE.GRASP_CANDIDATES_USER.ingest-user " +
			"$JS.API.CONSUMER.RESET.GRASP_CANDIDATES_USER.ingest-user " +
			"$JS.API.CONSUMER.LEADER.STEPDOWN.GRASP_CANDIDATES_LIVE.ingest-live " +
			"$JS.API.CONSUMER.DELETE.GRASP_EVENTS.any _INBOX.gateway.x _INBOX.relayconn.x other",
		"ingest purgatory":                    "$KV.grasp-usage.git.author.YQ",
		"ingest operator":                     "$KV.grasp-bans.author.a",
		"operator ingest":                     "$JS.API.INFO",
		everyone:                              "$JS.API.STREAM.INFO.GRASP_EVENTS $JS.API.STREAM.MSG.GET.GRASP_EVENTS",
		"ingest purgatory discovery operator": "$JS.API.DIRECT.GET.KV_grasp-held.>",
		"gateway purgatory operator":          "$JS.API.DIRECT.GET.KV_grasp-claims.$KV.grasp-claims.purgatory.00",
		"relayconn operator":                  "grasp.query.ids $JS.API.DIRECT.GET.KV_grasp-relays.$KV.grasp-relays.r.example.com",
	} {
		for _, subject := range strings.Fields(subjects) {
			for _, user := range strings.Fields(all) {
				may := strings.Contains(" "+who+" ", " "+user+" ")
				refused := s.refuses(t, conns[user], func() error { return conns[user].Publish(proto.LocalSubjects(user, subject)[0], nil) })
				if refused == may {
					t.Errorf("%s to %s: refused %t, want %t", user, subject, refused, !may)
				}
			}
		}
	}
}

// TestWhoMayListen tries to subscribe: everybody hears what is said to them, and only the operator
// hears everything.
func TestWhoMayListen(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for who, subjects := range map[string]string{
		"operator": "> grasp.> grasp.candidate.user grasp.git.> $JS.API.> $JS.EVENT.ADVISORY.> _INBOX.> _INBOX.tendril.>",
		"gateway purgatory relayconn operator import": "grasp.verdict.x",
		"ingest operator":    "grasp.query.ids grasp.query.events grasp.why $SRV.PING _INBOX.ingest.>",
		"purgatory operator": "grasp.repo.07.* _INBOX.purgatory.>",
		"gateway operator":   "_INBOX.gateway.> grasp.ephemeral.>",
		"discovery operator": "_INBOX.discovery.>",
		"relayconn operator": "_INBOX.relayconn.> grasp.fetch",
		"operator import":    "_INBOX.import.>",
	} {
		for _, subject := range strings.Fields(subjects) {
			for _, user := range strings.Fields(all) {
				may := strings.Contains(" "+who+" ", " "+user+" ")
				conn := s.connect(t, user)
				refused := s.refuses(t, conn, func() error {
					_, err := conn.SubscribeSync(subject)
					return err
				})
				if refused == may {
					t.Errorf("%s listens to %s: refused %t, want %t", user, subject, refused, !may)
				}
				conn.Close()
			}
		}
	}
}

// TestAnswers: ingest may answer whom it was asked by, as often as it takes, and none else.
func TestAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ingest, operator := s.connect(t, proto.UserIngest), s.connect(t, proto.UserOperator)
	_, err := ingest.Subscribe(proto.SubjectQueryIDs, func(m *nats.Msg) {
		for range 10 {
			_ = m.Respond(nil)
		}
	})
	must(t, err, ingest.Flush())
	inbox := operator.NewInbox()
	answers, err := operator.SubscribeSync(inbox)
	must(t, err, operator.PublishRequest(proto.SubjectQueryIDs, inbox, nil))
	for range 10 {
		_, err := answers.NextMsg(time.Minute)
		must(t, err)
	}
	if !s.refuses(t, ingest, func() error { return ingest.Publish(inbox+"x", nil) }) {
		t.Error("ingest may publish to inboxes that did not ask")
	}
}

// TestNoReplyReachesTheLog: a client with the login of a service outside of the core account makes
// the server answer to a subject of the log, and of the bucket of held events, by every request
// that the login may make and by consumers with such a subject. None of it arrives.
func TestNoReplyReachesTheLog(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	core, err := jetstream.New(s.connect(t, proto.UserTendril))
	must(t, err)
	answering, err := micro.AddService(s.connect(t, proto.UserIngest), micro.Config{
		Name: proto.ServiceEvents, Version: "1.0.0",
		Endpoint: &micro.EndpointConfig{Subject: proto.SubjectQueryEvents, Handler: micro.HandlerFunc(func(r micro.Request) { _ = r.Respond([]byte("{}")) })},
	})
	must(t, err)
	defer answering.Stop()
	for _, subject := range []string{"grasp.event.1.a.first", proto.KVSubject(proto.BucketRelays, "x")} {
		_, err := core.Publish(t.Context(), subject, []byte("mine"))
		must(t, err)
	}
	for _, bucket := range []string{proto.BucketHeld, proto.BucketRelays, proto.BucketClaims, proto.BucketUsage, proto.BucketBans} {
		if _, err := core.PublishMsg(t.Context(), &nats.Msg{Subject: proto.KVSubject(bucket, "x"), Header: nats.Header{"Nats-Rollup": {"all"}}}); err == nil {
			t.Errorf("a message empties %s", bucket)
		}
	}
	for _, user := range []string{proto.UserGateway, proto.UserPurgatory, proto.UserDiscovery, proto.UserRelayconn, proto.UserImport} {
		conn := s.connect(t, user)
		for _, evil := range []string{"grasp.event.1.a.evil", proto.KVSubject(proto.BucketHeld, "00.evil.1.a")} {
			ask := func(subject string, bodies ...string) {
				for _, body := range bodies {
					must(t, conn.PublishRequest(subject, evil, []byte(body)))
				}
			}
			for _, subject := range proto.PermissionsOf(user).Publish {
				ask(proto.LocalSubjects(user, strings.NewReplacer("*", "x", ">", "x").Replace(subject))[0], "", "{}", `{"seq":1}`, `{"seq":1,"batch":10}`)
			}
			for _, stream := range []string{proto.StreamEvents, proto.StreamTargets, proto.KVStream(proto.BucketRelays), proto.KVStream(proto.BucketClaims)} {
				consumer := fmt.Sprintf(`{"stream_name":%q,"config":{"name":"evil","deliver_subject":%q,"deliver_policy":"all","ack_policy":"none"}}`, stream, evil)
				for _, subject := range []string{stream + ".evil", stream, stream + ".evil.>"} {
					ask("$JS.API.CONSUMER.CREATE."+subject, consumer)
					ask(proto.CoreAPI+".CONSUMER.CREATE."+subject, consumer)
				}
				for _, verb := range []string{"CONSUMER.MSG.NEXT." + stream + ".evil", "STREAM.MSG.GET." + stream, "DIRECT.GET." + stream, "CONSUMER.LIST." + stream} {
					ask(proto.LocalSubjects(user, "$JS.API."+verb)[0], `{"seq":1}`)
				}
			}
		}
		must(t, conn.Flush())
	}
	// From the core account an answer does arrive, and what was asked before it has arrived by
	// then.
	const control = "grasp.event.1.a.control"
	must(t, core.Conn().PublishRequest("$JS.API.DIRECT.GET."+proto.StreamEvents, control, []byte(`{"seq":1}`)))
	log, err := core.Stream(t.Context(), proto.StreamEvents)
	must(t, err)
	if cfg := log.CachedInfo().Config; !cfg.DenyDelete || !cfg.DenyPurge { // not even by ingest
		t.Errorf("the log may be deleted from: %t, purged: %t", !cfg.DenyDelete, !cfg.DenyPurge)
	}
	fixture.Await(t, "the answer in the core account arrives", func() bool {
		_, err := log.GetLastMsgForSubject(t.Context(), control)
		return err == nil
	})
	for stream, want := range map[string]uint64{proto.StreamEvents: 2, proto.KVStream(proto.BucketHeld): 0} {
		info, err := core.Stream(t.Context(), stream)
		must(t, err)
		if got := info.CachedInfo().State.Msgs; got != want {
			t.Errorf("stream %s has %d messages, want %d", stream, got, want)
		}
	}
}
