package githttp_test

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

var must = fixture.Must

// receiver is githttp.Receive under the lock that Push has taken.
type receiver = func(ctx context.Context, commands []repostate.Change) (githttp.Refusals, error)

type pushing = func(ctx context.Context, push githttp.PushRequest, receive receiver) (githttp.Refusals, error)

// authority serves the repositories of a store and takes pushes as its functions say.
type authority struct {
	store     *repository.Store
	away      map[string]error // identifier → why its repository cannot be served
	push      pushing
	authorize func(push githttp.PushRequest) error // asked before large packs are read
}

func (a *authority) Repository(_ context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	if err := a.away[ref.Identifier]; err != nil {
		return nil, err
	}
	return a.store.Repo(ref)
}

func (a *authority) Authorize(_ context.Context, push githttp.PushRequest) error {
	return a.authorize(push)
}

func (a *authority) Push(ctx context.Context, push githttp.PushRequest, receive githttp.Receive) (githttp.Refusals, error) {
	repo, err := a.store.Repo(push.Ref)
	if err != nil {
		return nil, err
	}
	locked, err := repo.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer locked.Done()
	return a.push(ctx, push, func(ctx context.Context, commands []repostate.Change) (githttp.Refusals, error) {
		return receive(ctx, locked, commands)
	})
}

// takeAll is an authority's word for pushes that it allows, refuse for those that it does not.
func takeAll(ctx context.Context, push githttp.PushRequest, receive receiver) (githttp.Refusals, error) {
	return receive(ctx, push.Changes)
}

func refuse(err error) pushing {
	return func(context.Context, githttp.PushRequest, receiver) (githttp.Refusals, error) { return nil, err }
}

// house is a server of repositories and what a test asks of it.
type house struct {
	testing.TB
	*httptest.Server
	authority *authority
	registry  *prometheus.Registry
	client    *http.Client // nil: the server's
	answering sync.RWMutex // a request holds it to read
}

func serve(t testing.TB, o githttp.Options) *house { return serveFrom(t, gittest.Store(t), o) }

func serveFrom(t testing.TB, store *repository.Store, o githttp.Options) *house {
	t.Helper()
	h := &house{TB: t, registry: prometheus.NewPedanticRegistry(), authority: &authority{store: store, push: takeAll}}
	h.authority.authorize = func(githttp.PushRequest) error { return nil }
	handler := githttp.New(h.authority, complete(o, h.registry))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.answering.RLock()
		defer h.answering.RUnlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Server.Close)
	return h
}

// between does something while no request is answered: a client has its answer before the server
// has written its log.
func (h *house) between(do func()) {
	h.answering.Lock()
	defer h.answering.Unlock()
	do()
}

// begin is that for a test with a repository "x" and a work tree.
func begin(t *testing.T, o githttp.Options) (*house, *repository.Repo, *gittest.Work) {
	t.Parallel()
	h := serve(t, o)
	return h, h.repo("x"), gittest.NewWork(t)
}

// complete gives options that a test does not set the values that they have as a rule.
func complete(o githttp.Options, registry *prometheus.Registry) githttp.Options {
	o.Metrics, o.Log = githttp.NewMetrics(registry, 2), cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.MaxPushBytes = cmp.Or(o.MaxPushBytes, 4<<30)
	o.Stall, o.HandOver = cmp.Or(o.Stall, 30*time.Second), cmp.Or(o.HandOver, 30*time.Second)
	if o.Holder == nil {
		o.Holder = func(string) (string, bool) { return "", false }
	}
	return o
}

// repo makes a repository that is served. Its HEAD is as a release leaves it.
func (h *house) repo(identifier string) *repository.Repo {
	h.Helper()
	r := gittest.Repo(h, h.authority.store, identifier)
	must(h, os.WriteFile(filepath.Join(r.Path, "HEAD"), []byte("ref: refs/heads/main\n"), 0o644))
	return r
}

// path is where a repository is served, as a request names it.
func path(identifier string) string {
	npub, _ := nip19.EncodePublicKey(gittest.Owner)
	return nostr.RepositoryURLPath(npub, identifier)
}

// at is where a repository is served.
func (h *house) at(identifier string) string { return h.URL + path(identifier) }

func (h *house) refs(r *repository.Repo) map[string]string {
	h.Helper()
	refs, err := r.Refs()
	must(h, err)
	return refs.ByName
}

// counted returns one count of a metric, by the labels in the order of their names.
func (h *house) counted(metric string, labels ...string) float64 {
	h.Helper()
	families, err := h.registry.Gather()
	must(h, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, label := range m.GetLabel() {
				values = append(values, label.GetValue())
			}
			if family.GetName() == metric && strings.Join(values, " ") == strings.Join(labels, " ") {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// operations is how often an operation had a result.
func (h *house) operations(operation, result string) float64 {
	h.Helper()
	status := "error"
	if result == "ok" {
		status = "success"
	}
	return h.counted("ngit_git_operations_total", operation, result, status)
}

// send sends a request, with header fields as pairs, and gives status, header and body of the
// answer.
func (h *house) send(method, url string, body io.Reader, header ...string) (int, http.Header, string) {
	h.Helper()
	request, err := http.NewRequestWithContext(h.Context(), method, url, body)
	must(h, err)
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := cmp.Or(h.client, h.Client()).Do(request)
	must(h, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	must(h, err)
	return response.StatusCode, response.Header, string(content)
}

// post sends what a git client sends to a service.
func (h *house) post(identifier, service string, body io.Reader, header ...string) (int, string) {
	h.Helper()
	status, _, answer := h.send("POST", h.at(identifier)+"/"+service, body, append(header, "Content-Type", "application/x-"+service+"-request")...)
	return status, answer
}

// push sends the commands of a push, the first with its capabilities, and a pack.
func (h *house) push(identifier string, pack []byte, commands ...string) (int, string) {
	h.Helper()
	return h.post(identifier, "git-receive-pack", strings.NewReader(gittest.Pkt(commands...)+string(pack)))
}

// creates is the command that creates a reference.
func creates(name, id, capabilities string) string {
	return githttp.ZeroID + " " + id + " " + name + "\x00" + capabilities
}

// failing runs git in a work tree, which must fail, and returns what it printed.
func (h *house) failing(w *gittest.Work, args ...string) string {
	h.Helper()
	out, err := gittest.Try(h, w.Dir, args...)
	if err == nil {
		h.Errorf("git %s succeeds", strings.Join(args, " "))
	}
	return out
}
