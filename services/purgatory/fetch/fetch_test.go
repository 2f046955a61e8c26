package fetch_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
	"tendril.dev/test/fixture/nettest"
)

var limits = fetch.Limits{Timeout: time.Minute, MaxBytes: 64 << 20}

func guard() *netguard.Guard { return netguard.New(netguard.Options{AllowPrivate: true}) }

// cause is that of an error, or "".
func cause(t testing.TB, err error) fetch.Cause {
	t.Helper()
	if err == nil {
		return ""
	}
	failure, ok := errors.AsType[*fetch.Error](err)
	if !ok {
		t.Fatalf("an error of another kind: %v", err)
	}
	if len(err.Error()) > 8000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	return failure.Cause
}

func TestFetchByID(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := gittest.NewWork(t)
	first := w.Commit("a", strings.Repeat("line\n", 500))
	second := w.Commit("a", strings.Repeat("line\n", 500)+"more\n")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	tag := w.Git("rev-parse", "v1")
	third := w.Commit("b", "b")
	none := strings.Repeat("1", 40)
	w.Publish(root, "generous.git", "uploadpack.allowReachableSHA1InWant", "true", "uploadpack.allowTipSHA1InWant", "true")
	w.Publish(root, "plain.git")
	backend := gittest.Backend(t, root)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path, old := strings.CutPrefix(r.URL.Path, "/old"); old { // a server from before version 2
			r.URL.Path, r.URL.RawPath = path, ""
			r.Header.Del("Git-Protocol")
		}
		backend.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	for name, tc := range map[string]struct {
		path  string
		has   []string // what is there before
		want  []string
		got   []string
		cause fetch.Cause
	}{
		"a tip":                        {"generous.git", nil, []string{third}, []string{third}, ""},
		"a commit below the tip":       {"generous.git", nil, []string{first}, []string{first}, ""},
		"one of two":                   {"generous.git", nil, []string{none, second}, []string{second}, ""},
		"nothing is missing":           {"nowhere.git", []string{first}, []string{first}, []string{first}, ""},
		"plain: below the tip":         {"plain.git", nil, []string{first}, []string{first}, ""}, // by version 2
		"plain: many it does not have": {"plain.git", nil, append(ids(20), third), []string{third}, ""},
		"old: below the tip":           {"old/plain.git", nil, []string{first}, nil, fetch.CauseNoSuchObject},
		"old: one it does not offer":   {"old/plain.git", nil, []string{first, none, tag}, []string{first, tag}, ""}, // first comes along with tag
		"no such repository":           {"nowhere.git", nil, []string{first}, nil, fetch.CauseNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gittest.Repo(t, gittest.Store(t), "into")
			for i, id := range tc.has {
				gittest.Fill(t, r, w.Pack(id))
				if err := r.WithLock(t.Context(), func(r *repository.Locked) error { return r.SetRef(t.Context(), fmt.Sprintf("refs/heads/b%d", i), id) }); err != nil {
					t.Fatal(err)
				}
			}
			result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/"+tc.path, gittest.Lease(t, r), tc.want, limits)
			if got := cause(t, err); got != tc.cause {
				t.Fatalf("cause %q, want %q: %v", got, tc.cause, err)
			}
			if !slices.Equal(result.Got, tc.got) {
				t.Errorf("got %q, want %q", result.Got, tc.got)
			}
			if still, err := r.Missing(t.Context(), tc.got); err != nil || len(still) > 0 {
				t.Errorf("still missing %q, %v", still, err)
			}
			if brought := len(tc.got) > len(tc.has); brought != (result.Bytes > 0) {
				t.Errorf("%d bytes", result.Bytes)
			}
			gittest.Git(t, r.Path, "fsck", "--full", "--strict")
		})
	}
}

func ids(n int) []string {
	made := make([]string, n)
	for i := range made {
		made[i] = fmt.Sprintf("%040x", i+1)
	}
	return made
}

func TestUpdatesAreSmall(t *testing.T) {
	t.Parallel()
	root, w := t.TempDir(), gittest.NewWork(t)
	content := gittest.Noise(200 << 10)
	first, second := w.Commit("a", content), w.Commit("a", content+"more\n")
	w.Publish(root, "a.git")
	url := gittest.Backend(t, root).URL + "/a.git"
	r := gittest.Repo(t, gittest.Store(t), "into")
	whole, err := fetch.Fetch(t.Context(), guard(), url, gittest.Lease(t, r), []string{first}, limits)
	known := r.WithLock(t.Context(), func(r *repository.Locked) error { return r.SetRef(t.Context(), "refs/heads/main", first) })
	update, failed := fetch.Fetch(t.Context(), guard(), url, gittest.Lease(t, r), []string{second}, limits)
	if err := errors.Join(err, known, failed); err != nil || update.Bytes > whole.Bytes/20 {
		t.Errorf("%d bytes after %d, %v", update.Bytes, whole.Bytes, err)
	}
}

// wallet is an account with so many bytes.
type wallet struct{ has, paid int64 }

func (w *wallet) Take(bytes int64) error {
	if w.paid+bytes > w.has {
		return errors.New("there is no more in the wallet")
	}
	w.paid += bytes
	return nil
}

// TestWhatIsKeptIsPaidFor: bytes before they are kept, and by how much a repository grew.
func TestWhatIsKeptIsPaidFor(t *testing.T) {
	t.Parallel()
	root, w := t.TempDir(), gittest.NewWork(t)
	content := gittest.Noise(200 << 10)
	first, second := w.Commit("a", content), w.Commit("a", content+"more\n")
	w.Publish(root, "a.git")
	url := gittest.Backend(t, root).URL + "/a.git"
	r := gittest.Repo(t, gittest.Store(t), "into")
	fetches := func(who *wallet, id string) error {
		paying := limits
		paying.Account = who
		_, err := fetch.Fetch(t.Context(), guard(), url, gittest.Lease(t, r), []string{id}, paying)
		return err
	}
	poor, rich := &wallet{has: 100 << 10}, &wallet{has: 1 << 30}
	if err := fetches(poor, first); err == nil || poor.paid == 0 {
		t.Errorf("200 KiB for %d bytes of 100 KiB: %v", poor.paid, err)
	}
	gittest.Untouched(t, r)
	fixture.Must(t, fetches(rich, first))
	gittest.Do(t, r, func(r *repository.Locked) error { return r.SetRef(t.Context(), "refs/heads/main", first) })
	fixture.Must(t, fetches(rich, second)) // a thin pack, which is completed by what is here
	if bytes, err := r.Bytes(); err != nil || bytes < 400<<10 || rich.paid < bytes {
		t.Errorf("%d bytes are here, and %d were paid for, %v", bytes, rich.paid, err)
	}
}

func TestRedirectsAreFollowedForAllRequests(t *testing.T) {
	t.Parallel()
	root, w := t.TempDir(), gittest.NewWork(t)
	id := w.Commit("a", "a")
	w.Publish(root, "real.git")
	backend := gittest.Backend(t, root)
	front := http.NewServeMux() // only the first request comes here
	front.Handle("GET /moved.git/info/refs", http.RedirectHandler(backend.URL+"/real.git/info/refs?service=git-upload-pack", http.StatusMovedPermanently))
	front.Handle("GET /elsewhere/info/refs", http.RedirectHandler(backend.URL+"/real.git/HEAD", http.StatusFound))
	server := httptest.NewServer(front)
	t.Cleanup(server.Close)
	for path, want := range map[string]fetch.Cause{"/elsewhere": fetch.CauseNotGit, "/moved.git": ""} {
		r := gittest.Repo(t, gittest.Store(t), "into")
		if _, err := fetch.Fetch(t.Context(), guard(), server.URL+path, gittest.Lease(t, r), []string{id}, limits); cause(t, err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// advertisement is what a server says first, of one reference.
func advertisement(id, capabilities string) string {
	return gittest.Pkt("# service=git-upload-pack\n") + gittest.Pkt(id+" refs/heads/main\x00"+capabilities+"\n")
}

func band(channel byte, content string) string {
	return fmt.Sprintf("%04x%c%s", len(content)+5, channel, content)
}

// hostile is a server that says what it is told to say.
type hostile struct {
	refs, pack             string
	refsType, packType     string
	refsStatus, packStatus int
	stall                  bool // after the pack, until the client goes
	endless                string
	trickle                string // a little at a time after the content, until the client goes
	zipped                 bool   // the pack, and what has no end
	limits                 fetch.Limits
}

func (h hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, kind, status := h.refs, h.refsType, h.refsStatus
	if r.Method == http.MethodPost {
		content, kind, status = h.pack, h.packType, h.packStatus
		if kind == "" {
			kind = "application/x-git-upload-pack-result"
		}
	} else if kind == "" {
		kind = "application/x-git-upload-pack-advertisement"
	}
	w.Header().Set("Content-Type", kind)
	if status != 0 {
		w.WriteHeader(status)
	}
	io.Copy(io.Discard, r.Body)
	if !h.zipped || r.Method == http.MethodGet {
		io.WriteString(w, content)
	} else {
		w.Header().Set("Content-Encoding", "gzip")
	}
	for h.trickle != "" && (h.pack == "") == (r.Method == http.MethodGet) && r.Context().Err() == nil {
		io.WriteString(w, h.trickle)
		w.(http.Flusher).Flush()
		time.Sleep(time.Millisecond)
	}
	if r.Method != http.MethodPost {
		return
	}
	var to io.Writer = w
	if h.zipped {
		to = gzip.NewWriter(w)
		io.WriteString(to, content)
	}
	for h.endless != "" && r.Context().Err() == nil {
		if _, err := io.WriteString(to, h.endless); err != nil {
			return
		}
	}
	if h.stall {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

func TestHostileServers(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	id := w.Commit("b", "b")
	pack := string(w.Pack("main"))
	hole := string(w.PackOf(id, w.Git("rev-parse", "main^{tree}")))
	adv := advertisement(id, "side-band-64k ofs-delta allow-reachable-sha1-in-want")
	const nak = "0008NAK\n"
	half, greeting := nak+band(1, pack[:40]), gittest.Pkt("# service=git-upload-pack\n")
	small := limits
	small.MaxBytes = 100_000
	short := limits
	short.Timeout, short.Silence = 300*time.Millisecond, time.Hour // without that both end at once
	slow := limits
	slow.MinRate = 1 << 20
	slow.SetWindow(100 * time.Millisecond)
	for name, tc := range map[string]struct {
		server hostile
		cause  fetch.Cause
	}{
		"HTML":                    {hostile{refs: "<html>", refsType: "text/html"}, fetch.CauseNotGit},
		"forbidden":               {hostile{refsStatus: 403}, fetch.CauseForbidden},
		"other service":           {hostile{refs: gittest.Pkt("# service=git-receive-pack\n") + "0000"}, fetch.CauseNotGit},
		"empty repository":        {hostile{refs: greeting + "0000"}, fetch.CauseNoSuchObject},
		"no answer to wants":      {hostile{refs: adv}, fetch.CauseNoSuchObject},
		"refuses":                 {hostile{refs: adv, pack: gittest.Pkt("ERR upload-pack: not our ref " + id + " \x1b[31m")}, fetch.CauseNoSuchObject},
		"HTML for a pack":         {hostile{refs: adv, pack: "<html>", packType: "text/html"}, fetch.CauseNotGit},
		"NAK without end":         {hostile{refs: adv, endless: nak}, fetch.CauseNotGit},
		"channel 3":               {hostile{refs: adv, pack: nak + band(1, pack[:20]) + band(3, "out of "+strings.Repeat("memory", 5000))}, fetch.CauseServer},
		"a hole in the history":   {hostile{refs: adv, pack: nak + band(1, hole) + "0000"}, fetch.CauseBadPack},
		"a pack without our wish": {hostile{refs: adv, pack: nak + band(1, string(w.Pack("main^"))) + "0000"}, fetch.CauseNoSuchObject},
		"words without end":       {hostile{refs: adv, pack: nak, endless: band(2, strings.Repeat("progress", 1000)), limits: small}, fetch.CauseTooLarge},
		"packed words":            {hostile{refs: adv, pack: nak, endless: band(2, strings.Repeat(" ", 60_000)), zipped: true, limits: small}, fetch.CauseTooLarge}, // what counts is what comes out
		"a pack without end":      {hostile{refs: adv, pack: half, endless: band(1, strings.Repeat("x", 60_000))}, fetch.CauseTooLarge},
		"stalls":                  {hostile{refs: adv, pack: half, stall: true, limits: short}, netguard.CauseTimeout},
		"words slowly":            {hostile{refs: adv, pack: half, trickle: band(2, "."), limits: slow}, fetch.CauseTooSlow},
		"references slowly":       {hostile{refs: strings.TrimSuffix(adv, "0000"), trickle: gittest.Pkt(strings.Repeat("1", 40) + " refs/heads/x\n")[:58], limits: slow}, fetch.CauseTooSlow},
		"a pack, then nothing":    {hostile{refs: adv, pack: half, stall: true, limits: slow}, fetch.CauseTooSlow},
		"without bands":           {hostile{refs: advertisement(id, ""), pack: nak + pack}, fetch.CauseNotGit},
		"version 2, no section":   {hostile{refs: gittest.Pkt("version 2\n"), pack: gittest.Pkt("acknowledgments\n")}, fetch.CauseNotGit},

		"version 2": {hostile{refs: greeting + gittest.Pkt("version 2\n"), pack: "000dpackfile\n" + band(2, "hello") + band(1, pack[:30]) + band(1, pack[30:]) + "0000"}, ""},
		"version 1": {hostile{refs: greeting + "000eversion 1\n" + strings.TrimPrefix(adv, greeting), pack: nak + band(1, pack) + "0000"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(tc.server)
			t.Cleanup(server.Close)
			r := gittest.Repo(t, gittest.Store(t), "into")
			result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), []string{id}, cmp.Or(tc.server.limits, limits))
			if got := cause(t, err); got != tc.cause {
				t.Fatalf("cause %q, want %q: %v", got, tc.cause, err)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\x07") {
				t.Errorf("error %q", err)
			}
			if (tc.cause == "") != (len(result.Got) == 1) {
				t.Errorf("got %q", result.Got)
			}
			if data, err := r.HasObjects(); err != nil || data != (tc.cause == "") {
				t.Errorf("has data: %v, %v", data, err)
			}
		})
	}
}

// TestWordsCountInAllRequests: a server that talks and then refuses is asked for less and less, but
// does not get its limit anew each time.
func TestWordsCountInAllRequests(t *testing.T) {
	t.Parallel()
	var ids []string
	for n := range 8 {
		ids = append(ids, strings.Repeat(fmt.Sprint(n+1), 40))
	}
	talk := "0008NAK\n" + band(2, strings.Repeat("word", 10_000)) + band(3, "no")
	server := httptest.NewServer(hostile{refs: advertisement(ids[0], "side-band-64k allow-reachable-sha1-in-want"), pack: talk})
	t.Cleanup(server.Close)
	bounded := limits
	bounded.MaxBytes = 100_000
	r := gittest.Repo(t, gittest.Store(t), "into")
	result, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), ids, bounded)
	if cause(t, err) != fetch.CauseTooLarge || result.Requests > 6 {
		t.Errorf("after %d requests of 40 KB, of 100 KB in all: %v", result.Requests, err)
	}
}

func TestFullDiskIsOursAndNothingStaysOnIt(t *testing.T) {
	w, root := gittest.NewWork(t), t.TempDir()
	small := w.Commit("a", "a")
	large := w.Commit("b", gittest.Noise(1<<20))
	w.Publish(root, "a.git", "uploadpack.allowReachableSHA1InWant", "true")
	server := gittest.Backend(t, root)
	r := gittest.Repo(t, gittest.CrampedStore(t, 256), "into")
	_, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), []string{large}, limits)
	if cause(t, err) != fetch.CauseOurs || !repository.Unwritable(err) {
		t.Errorf("error %v", err)
	}
	if size, err := r.Bytes(); err != nil || size > 64<<10 {
		t.Errorf("%d bytes are left, %v", size, err)
	}
	if _, err := fetch.Fetch(t.Context(), guard(), server.URL+"/a.git", gittest.Lease(t, r), []string{small}, limits); err != nil {
		t.Errorf("what there is room for: %v", err)
	}
}

func TestServersThatCannotBeReached(t *testing.T) {
	t.Parallel()
	closed := "http://" + nettest.Refusing(t)
	secure := httptest.NewTLSServer(hostile{})
	t.Cleanup(secure.Close)
	r := gittest.Repo(t, gittest.Store(t), "into")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx   context.Context
		guard *netguard.Guard
		url   string
		cause fetch.Cause
	}{
		"nothing listens": {t.Context(), guard(), closed, netguard.CauseConnect},
		"no certificate":  {t.Context(), guard(), secure.URL, netguard.CauseTLS},
		"private address": {t.Context(), netguard.New(netguard.Options{}), closed, netguard.CauseRefused},
		"other scheme":    {t.Context(), guard(), "ftp://example.com/a.git", fetch.CauseOurs},
		"we gave up":      {canceled, guard(), closed, fetch.CauseCanceled},
	} {
		_, err := fetch.Fetch(tc.ctx, tc.guard, tc.url+"/a.git", gittest.Lease(t, r), ids(1), limits)
		if got := cause(t, err); got != tc.cause {
			t.Errorf("%s: cause %q, want %q: %v", name, got, tc.cause, err)
		}
	}
}
