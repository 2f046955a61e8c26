package purgatory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/config"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/testonly"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

var must, eventually = fixture.Must, fixture.Await

const (
	domain   = "git.example.com"
	patience = fixture.Patience
	// workerTTL is longer than any test waits.
	workerTTL = 10 * patience
)

// worker is the service in a node of its own.
type worker struct {
	*node.Node
	stop  func()
	asked *asked
}

// asked counts questions for accepted events.
type asked struct {
	walks atomic.Int32 // for all announcements
	looks atomic.Int32 // for one event
	read  atomic.Int32 // events that were answers
	ids   atomic.Int32 // ids of which it was asked whether they are known
}

// countedSource counts the questions.
type countedSource struct {
	query.Source
	*asked
}

func (s countedSource) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	if len(f.Authors)+len(f.IDs) == 0 && slices.Contains(f.Kinds, nostr.KindAnnouncement) {
		s.walks.Add(1)
	}
	if len(f.IDs) == 1 {
		s.looks.Add(1)
	}
	return func(yield func(*nostr.Event, error) bool) {
		for ev, err := range s.Source.Query(ctx, f) {
			if s.read.Add(1); !yield(ev, err) {
				return
			}
		}
	}
}

func (s countedSource) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[[32]byte, error] {
	s.ids.Add(int32(len(f.IDs)))
	return s.Source.IDs(ctx, f)
}

// TestMain lets strangers push however full the machine's disk is.
func TestMain(m *testing.M) {
	os.Setenv(testonly.Prefix+"DISK_LEAST_FREE", "0")
	os.Exit(m.Run())
}

// open opens the node of a worker on the git folder; url is the NATS server of another, or empty.
// Of a process with services it is known which it has.
func open(t testing.TB, name, gitFolder, url string, services []node.Service, flags ...string) *node.Node {
	t.Helper()
	flags = append([]string{
		"--domain=" + domain, "--relay-data-path=" + t.TempDir(), "--database-backend=memory", "--git-data-path=" + gitFolder,
		"--nats-url=" + url, "--git-listen=127.0.0.1:0", "--allow-private-networks",
		// However slow the machine is, no worker is taken for dead or stops too late, and no server
		// is spared for having been asked often meanwhile.
		"--worker-ttl=" + workerTTL.String(), "--shutdown-wait=" + patience.String(), "--sync-domain-rate-limit=1000000",
	}, flags...)
	if url == "" {
		flags = append(flags, "--nats-listen=127.0.0.1:0")
	}
	s, err := config.Process().Parse(flags)
	must(t, err)
	logs, err := os.OpenFile(gitFolder+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	n, err := node.Open(t.Context(), "purgatory", s, slog.New(slog.NewTextHandler(logs, nil)), false, services...)
	must(t, err)
	n.Worker = name
	return n
}

// start runs a worker in a node that open opens.
func start(t testing.TB, name, gitFolder, url string, flags ...string) worker {
	t.Helper()
	return run(t, name, open(t, name, gitFolder, url, nil, flags...))
}

// run runs a worker in a node that open has opened.
func run(t testing.TB, name string, n *node.Node, set ...func(*purgatory.Constants)) worker {
	t.Helper()
	constants := purgatory.Constants{
		Git: "git", SyncDelay: 10 * time.Millisecond, UserDelay: 10 * time.Minute, Again: 10 * time.Millisecond, Turn: time.Second,
		BackOff: 200 * time.Millisecond, MostBackOff: time.Second, HuntsAtOnce: 32,
		Answer: patience,
	}
	for _, set := range set {
		set(&constants)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	asked := &asked{}
	serve := func(ctx context.Context, n *node.Node) error {
		counted := *n
		counted.Accepted = countedSource{n.Accepted, asked}
		return purgatory.RunBy(ctx, &counted, constants)
	}
	go func() { done <- n.Run(ctx, node.Service{Name: "purgatory", Run: serve}) }()
	w := worker{Node: n, asked: asked, stop: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})}
	t.Cleanup(func() {
		w.stop()
		if err := n.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	w.holds(t, 1)
	return w
}

// holds waits until the worker holds so many shards.
func (w worker) holds(t testing.TB, shards float64) {
	t.Helper()
	eventually(t, "it holds shards", func() bool { return w.metric("purgatory_shards_held") >= shards })
}

// metric is the sum of a metric over its labels that contain all of the parts; -1 if there is no
// such metric.
func (w worker) metric(name string, parts ...string) float64 {
	families, err := w.Metrics.Gather()
	sum := -1.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			lacks := func(part string) bool { return !strings.Contains(m.String(), `"`+part+`"`) }
			if err == nil && f.GetName() == name && !slices.ContainsFunc(parts, lacks) {
				sum = max(sum, 0) + m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// world is one worker, an ingest that is played, and a listener.
type world struct {
	testing.TB
	worker
	git   string
	url   string // of NATS
	work  *gittest.Work
	store *repository.Store
	in    *ingest
	told  *notices
	door  *httptest.Server
}

func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	t.Parallel()
	return newWorldBy(t, func(*purgatory.Constants) {}, flags...)
}

// newWorldBy is newWorld with other constants, for a test that does not run beside others.
func newWorldBy(t *testing.T, set func(*purgatory.Constants), flags ...string) *world {
	t.Helper()
	git := filepath.Join(t.TempDir(), "git")
	w := &world{TB: t, git: git, work: gittest.NewWork(t), worker: run(t, "one", open(t, "one", git, "", nil, flags...), set)}
	store, err := repository.NewStore(repository.Options{Root: git})
	must(t, err)
	w.url, w.store, w.in, w.told = w.Bus.ClientURL(), store, playIngest(t, w.Bus), listen(t, w.Bus)
	directory, err := claim.Watch(context.Background(), w.Bus, proto.GroupShards, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(directory.Close)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme = "http" },
		Transport: doorway{directory},
		ErrorHandler: func(rw http.ResponseWriter, _ *http.Request, err error) {
			http.Error(rw, err.Error(), http.StatusBadGateway)
		},
	}
	w.door = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		// A worker may answer before the last read of the request's body, which net/http would
		// refuse then; and with it the connection to the worker would go, in mid-answer.
		if err := http.NewResponseController(rw).EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		proxy.ServeHTTP(rw, r)
		r.Body.Close() // now: net/http fails if it finds the rest of the body after the answer
	}))
	t.Cleanup(w.door.Close)
	w.holds(t, proto.Shards)
	return w
}

// doorway passes requests on to the worker that holds their shard, as the front door does: until one
// does and listens it waits, because the directory may be behind the worker.
type doorway struct{ directory *claim.Directory }

func (d doorway) RoundTrip(r *http.Request) (*http.Response, error) {
	path, err := nostr.ParseRepositoryPath(r.URL.EscapedPath())
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(patience); ; {
		err := errors.New("no worker holds the shard")
		if holder, held := d.directory.Holder(proto.ShardName(proto.ShardOf(path.Identifier))); held {
			var answer *http.Response
			r.URL.Host = holder.Address
			answer, err = http.DefaultTransport.RoundTrip(r)
			if failed, is := errors.AsType[*net.OpError](err); !is || failed.Op != "dial" {
				return answer, err
			}
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
}

// restart stops the worker; the next one of its shards goes on.
func (w *world) restart(flags ...string) {
	w.Helper()
	w.stop()
	w.worker = start(w, "next", w.git, w.url, flags...)
	w.holds(w, proto.Shards)
}

func (w *world) address(owner, identifier string) string {
	return w.door.URL + nostr.RepositoryURLPath(npub(owner), identifier)
}

func (w *world) repo(owner, identifier string) *repository.Repo {
	w.Helper()
	repo, err := w.store.Repo(nostr.RepoRef{PubKey: owner, Identifier: identifier})
	must(w, err)
	return repo
}

func (w *world) ref(owner, identifier, name string) string {
	w.Helper()
	repo := w.repo(owner, identifier)
	if !repo.Exists() {
		return ""
	}
	refs, err := repo.Refs()
	must(w, err)
	return refs.ByName[name]
}

// isAt sees what a repository's branch main names.
func (w *world) isAt(owner, identifier, commit string) {
	w.Helper()
	if got := w.ref(owner, identifier, mainBranch); got != commit {
		w.Errorf("main of %s is %q, want %q", identifier, got, commit)
	}
}

func (w *world) released(ev *nostr.Event) {
	w.Helper()
	eventually(w, ev.Content+" is released", func() bool { return w.in.times(ev.ID) > 0 })
}

func (w *world) push(owner, identifier string, refs ...string) (string, error) {
	w.Helper()
	return gittest.Try(w, w.work.Dir, append([]string{"push", w.address(owner, identifier)}, refs...)...)
}

// pushes is push of what is taken.
func (w *world) pushes(owner, identifier string, refs ...string) {
	w.Helper()
	if out, err := w.push(owner, identifier, refs...); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
}

// refuses is push of what is refused, and says why.
func (w *world) refuses(why, owner, identifier string, refs ...string) {
	w.Helper()
	if out, err := w.push(owner, identifier, refs...); err == nil || !strings.Contains(out, why) {
		w.Errorf("a push of %v, which is refused because of %q: %v\n%s", refs, why, err, out)
	}
}

// pushState pushes the branch main, for a state that is held for it.
func (w *world) pushState(owner, identifier string, at nostr.Timestamp, commit string) *nostr.Event {
	w.Helper()
	st := state(fmt.Sprint("state ", at), owner, identifier, at, commit)
	w.in.waits(identifier, st)
	w.pushes(owner, identifier, "main")
	return st
}

// announced accepts the announcement of a repository here.
func (w *world) announced(owner, identifier string) {
	w.in.accept(announcement("announcement", owner, identifier))
}

// pushFirst accepts the announcement of alice's repository x, pushes a first commit to its branch
// main, and returns the commit.
func (w *world) pushFirst() (commit string) {
	w.Helper()
	commit = w.work.Commit("a", "1")
	w.announced(alice, "x")
	w.pushState(alice, "x", 1001, commit)
	return commit
}

const mainBranch = "refs/heads/main"

var (
	secrets = map[string]string{} // by public key

	alice, bob, carol = person("01"), person("02"), person("08")
	many              = crowd(20)

	alicesX = repo(alice, "x").String()
)

func npub(pubkey string) string { return fixture.Unsigned(pubkey).Npub }

// person makes a key. Those of alice, bob and carol are in this order.
func person(secret string) (pubkey string) {
	secret = strings.Repeat(secret, 32)
	pubkey, _ = gonostr.GetPublicKey(secret)
	secrets[pubkey] = secret
	return pubkey
}

func crowd(n int) (pubkeys []string) {
	for i := range n {
		pubkeys = append(pubkeys, person(fmt.Sprint(10+i)))
	}
	return pubkeys
}

// finish signs an event of a person.
func finish(ev *nostr.Event) *nostr.Event {
	ev.ID, ev.Sig = ev.GetID(), strings.Repeat("0", 128)
	if secret := secrets[ev.PubKey]; secret != "" {
		_ = ev.Sign(secret)
	}
	return ev
}

// event makes an event; its name is its content.
func event(name string, kind int, author string, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
	return finish(&nostr.Event{Kind: kind, PubKey: author, CreatedAt: at, Content: name, Tags: tags})
}

// repo is the address of an announcement.
func repo(owner, identifier string) nostr.RepoRef {
	return nostr.RepoRef{PubKey: owner, Identifier: identifier}
}

func announcement(name, owner, identifier string, clone ...string) *nostr.Event {
	ours := "https://" + domain + nostr.RepositoryURLPath(npub(owner), identifier)
	return event(name, nostr.KindAnnouncement, owner, 1000, nostr.Tag{"d", identifier}, append(nostr.Tag{"clone", ours}, clone...), nostr.Tag{"relays", "wss://" + domain})
}

// abroad is an announcement of a repository that is elsewhere.
func abroad(name, owner, identifier string, at nostr.Timestamp) *nostr.Event {
	return event(name, nostr.KindAnnouncement, owner, at, nostr.Tag{"d", identifier}, nostr.Tag{"clone", "https://other.example.org/x.git"}, nostr.Tag{"relays", "wss://other.example.org"})
}

func state(name, author, identifier string, at nostr.Timestamp, commit string) *nostr.Event {
	return event(name, nostr.KindState, author, at, nostr.Tag{"d", identifier}, nostr.Tag{mainBranch, commit}, nostr.Tag{"HEAD", "ref: refs/heads/main"})
}

func pull(name, author, commit, owner, identifier string, clone ...string) *nostr.Event {
	ev := pullFor(name, author, commit, repo(owner, identifier))
	ev.Tags = append(ev.Tags, append(nostr.Tag{"clone"}, clone...))
	return finish(ev)
}

// pullFor is a pull request that tags several repositories.
func pullFor(name, author, commit string, refs ...nostr.RepoRef) *nostr.Event {
	ev := event(name, nostr.KindPR, author, 2000, nostr.Tag{"c", commit})
	for _, ref := range refs {
		ev.Tags = append(ev.Tags, nostr.Tag{"a", ref.String()})
	}
	return finish(ev)
}

func issue(name string, tags ...nostr.Tag) *nostr.Event { return event(name, 1621, bob, 1004, tags...) }

// deletion is a deletion request for an event, or for its address.
func deletion(author string, tag ...string) *nostr.Event {
	return event("deletion", nostr.KindDeletion, author, 1500, tag)
}

// published is a commit, and the URL at which another server has it.
func published(t testing.TB) (commit, url string) {
	t.Helper()
	work, root := gittest.NewWork(t), t.TempDir()
	commit = work.Commit("a", "1")
	work.Publish(root, "x.git")
	return commit, gittest.Backend(t, root).URL + "/x.git"
}

// ingest plays the writer of the log: services do not import each other. It knows no policy, only
// what purgatory asks of it.
type ingest struct {
	testing.TB
	bus *bus.Bus

	mu       sync.Mutex
	held     map[string]proto.Held // by key
	accepted map[string]int        // how often an event was appended to the log, by id
	asked    map[string]int        // "<action> <content>"
	refuse   map[string]bool       // ids whose release is refused
	then     func()                // is called when thenOf was asked for thenAt times
	thenOf   string
	thenAt   int
	pause    chan struct{} // candidates wait until it is closed
}

func playIngest(t testing.TB, b *bus.Bus) *ingest {
	t.Helper()
	in := &ingest{
		TB: t, bus: b, held: map[string]proto.Held{}, accepted: map[string]int{}, asked: map[string]int{}, refuse: map[string]bool{},
	}
	consumer, err := b.JS.Consumer(t.Context(), proto.StreamRelease, proto.ConsumerRelease)
	must(t, err)
	consume, err := consumer.Consume(in.decide)
	must(t, err)
	t.Cleanup(func() {
		consume.Stop()
		<-consume.Closed()
	})
	return in
}

func (in *ingest) ok(err error) {
	if err != nil {
		in.Error(err)
	}
}

func (in *ingest) decide(m jetstream.Msg) {
	in.mu.Lock()
	pause := in.pause
	in.mu.Unlock()
	if pause != nil {
		<-pause
	}
	lines, err := proto.SplitPack(m.Data())
	in.ok(err)
	var verdicts []proto.Verdict
	for _, line := range lines {
		ev := &nostr.Event{}
		in.ok(json.Unmarshal(line, ev))
		v := in.verdict(ev, proto.Action(m.Headers().Get(proto.HeaderAction)), m.Headers().Get(proto.HeaderReason))
		v.ID, v.Kind = ev.ID, ev.Kind
		verdicts = append(verdicts, v)
	}
	data, err := json.Marshal(proto.Verdicts{Ref: m.Headers().Get(proto.HeaderRef), Verdicts: verdicts})
	in.ok(err)
	in.ok(in.bus.Conn.Publish(m.Headers().Get(proto.HeaderReply), data))
	in.ok(m.Ack())
}

func (in *ingest) verdict(ev *nostr.Event, action proto.Action, reason string) proto.Verdict {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.asked[string(action)+" "+ev.Content]++
	if in.then != nil && in.asked[in.thenOf] == in.thenAt {
		then := in.then
		in.then = nil
		defer then()
	}
	key, entry, holds := in.find(ev.ID)
	switch {
	case action == proto.ActionRemove && in.refuse[ev.ID]:
		return proto.Verdict{Outcome: proto.Rejected, Message: "invalid: refused"}
	case action == proto.ActionRemove:
		return proto.Verdict{Outcome: proto.Done, Seq: in.remove(ev)}
	case action == proto.ActionRelease && in.accepted[ev.ID] > 0:
		return proto.Verdict{Outcome: proto.Duplicate}
	case action == proto.ActionRelease && (!holds || in.refuse[ev.ID]):
		in.drop(key)
		return proto.Verdict{Outcome: proto.Rejected, Message: "invalid: refused"}
	case action == proto.ActionRelease:
		seq := in.append(ev)
		in.drop(key)
		return proto.Verdict{Outcome: proto.Accepted, Seq: seq}
	case !holds:
	case action == proto.ActionExtend:
		entry.ExpiresAt = time.Now().Add(time.Hour)
		in.put(key, entry)
	case reason == "" && time.Now().Before(entry.ExpiresAt):
	case ev.Kind == nostr.KindAnnouncement && entry.Phase == proto.PhaseWaiting:
		entry.Phase, entry.ExpiresAt = proto.PhaseSilent, time.Now().Add(time.Hour)
		in.put(key, entry)
	default:
		in.drop(key)
	}
	return proto.Verdict{Outcome: proto.Done}
}

func (in *ingest) find(id string) (string, proto.Held, bool) {
	for key, h := range in.held {
		if h.Event.ID == id {
			return key, h, true
		}
	}
	return "", proto.Held{}, false
}

func (in *ingest) commit(m *nats.Msg) uint64 {
	last, err := in.bus.PublishBatch(context.Background(), []*nats.Msg{m}, nil)
	in.ok(err)
	return last
}

func (in *ingest) append(ev *nostr.Event) uint64 {
	raw, err := ev.MarshalJSON()
	in.ok(err)
	in.accepted[ev.ID]++
	m := &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Data: raw, Header: nats.Header{}}
	if ev.Kind == nostr.KindVanish {
		m.Header.Set(proto.HeaderRequest, fmt.Sprintf(`{"at":%d,"vanishes":%t}`, time.Now().Unix(), nostr.VanishesFrom(ev, domain)))
	}
	return in.commit(m)
}

// remove takes an event out of the log.
func (in *ingest) remove(ev *nostr.Event) uint64 {
	in.accepted[ev.ID] = 0
	m := &nats.Msg{Subject: proto.EventSubjectOf(ev).String(), Header: nats.Header{}}
	m.Header.Set(proto.HeaderRemoved, ev.ID)
	return in.commit(m)
}

func (in *ingest) put(key string, h proto.Held) {
	data, err := json.Marshal(h)
	in.ok(err)
	in.held[key] = h
	in.commit(&nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Data: data})
}

func (in *ingest) drop(key string) {
	if _, holds := in.held[key]; !holds {
		return
	}
	delete(in.held, key)
	m := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Header: nats.Header{}}
	m.Header.Set(proto.KVOperation, proto.KVDelete)
	in.commit(m)
}

// waits writes events into purgatory that a user has sent, and syncs those of a relay, for an hour.
func (in *ingest) waits(identifier string, events ...*nostr.Event) {
	in.Helper()
	for _, ev := range events {
		in.holds(identifier, ev, proto.SourceUser, time.Hour)
	}
}

func (in *ingest) syncs(identifier string, events ...*nostr.Event) {
	in.Helper()
	for _, ev := range events {
		in.holds(identifier, ev, proto.SourceLive, time.Hour)
	}
}

// holds writes an event into purgatory, for how long the test says.
func (in *ingest) holds(identifier string, ev *nostr.Event, source proto.Source, wait time.Duration) {
	in.Helper()
	key, err := proto.HeldKey(identifier, ev)
	must(in, err)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.put(key, proto.Held{Event: ev, Identifier: identifier, Source: source, Phase: proto.PhaseWaiting, HeldAt: time.Now(), ExpiresAt: time.Now().Add(wait)})
}

// accept appends an event to the log as if it had been released.
func (in *ingest) accept(ev *nostr.Event) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.append(ev)
}

// set changes how it decides from now on.
func (in *ingest) set(change func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	change()
}

// after has something done when a question was asked so many times.
func (in *ingest) after(question string, times int, then func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.then, in.thenOf, in.thenAt = then, question, times
}

func (in *ingest) times(id string) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.accepted[id]
}

func (in *ingest) requests() map[string]int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return maps.Clone(in.asked)
}

// notices is what is told on grasp.git.
type notices struct {
	testing.TB
	mu   sync.Mutex
	told []string
}

func listen(t testing.TB, b *bus.Bus) *notices {
	t.Helper()
	n := &notices{TB: t}
	sub, err := b.Conn.Subscribe("grasp.git.>", func(m *nats.Msg) {
		parts := strings.Split(m.Subject, ".")
		identifier, err := proto.DecodeIdentifier(parts[2])
		verb := parts[3]
		var notice proto.GitNotice
		if err := json.Unmarshal(m.Data, &notice); err != nil {
			n.Error(err)
		}
		if err != nil || notice.Identifier != identifier {
			n.Errorf("a notice on %q about %q: %v", m.Subject, notice.Identifier, err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.told = append(n.told, fmt.Sprintf("%s %s %d %s", identifier, verb, notice.Kind, notice.Reason))
	})
	must(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	return n
}

// await waits until something that begins so was told.
func (n *notices) await(prefix string) {
	n.Helper()
	eventually(n, "told of "+prefix, func() bool { return n.count(prefix) > 0 })
}

func (n *notices) count(prefix string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(n.told), func(s string) bool { return !strings.HasPrefix(s, prefix) }))
}
