package githttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/nettest"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository/gittest"
)

const receiveType = "application/x-git-receive-pack-request"

func TestPushIsTakenWhenItIsAuthorised(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("push")
	var asked []githttp.Command
	released := false
	h.authority.push = func(ctx context.Context, commands []githttp.Command, receive func(context.Context) error) error {
		asked = commands
		err := receive(ctx)
		released = err == nil && h.refs(r)["refs/heads/main"] == commands[0].New
		return err
	}
	w := gittest.NewWork(t)
	first := w.Commit("a", "a")
	w.Git("push", h.at("push"), "main")
	if want := (githttp.Command{Name: "refs/heads/main", Old: githttp.ZeroID, New: first}); len(asked) != 1 || asked[0] != want {
		t.Errorf("asked for %+v", asked)
	}
	if !released {
		t.Error("the references were not there when receive returned")
	}
	second := w.Commit("b", "b")
	w.Git("tag", "--annotate", "--message", "v1", "v1")
	w.Git("push", h.at("push"), "main", "v1")
	w.Git("push", "--force", h.at("push"), first+":refs/heads/main", second+":refs/heads/dev", ":refs/tags/v1")
	want := map[string]string{"refs/heads/main": first, "refs/heads/dev": second}
	if got := h.refs(r); !maps.Equal(got, want) {
		t.Errorf("references %v, want %v", got, want)
	}
	w.Git("push", h.at("push"), ":refs/heads/main") // the branch that HEAD follows
	if got := h.refs(r); len(got) != 1 {
		t.Errorf("references %v", got)
	}
	if n := h.counted("ngit_git_push_authorization_total", "allowed"); n != 4 {
		t.Errorf("%v pushes counted as authorised", n)
	}
	if n := h.counted("ngit_git_operations_total", "receive_pack", "ok", "success"); n != 4 {
		t.Errorf("%v pushes counted", n)
	}
}

func TestRefusalStandsOnTheTerminal(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("refused")
	reason := "authorisation failed: no state event authorises these references"
	h.authority.push = func(context.Context, []githttp.Command, func(context.Context) error) error {
		return fmt.Errorf("push: %w", githttp.Refuse(reason))
	}
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	w.Git("branch", "dev")
	big := filepath.Join(w.Dir, "big")
	noise := make([]byte, 8<<20) // beyond http.postBuffer: sent in chunks, after a probe
	rand.Read(noise)
	if err := os.WriteFile(big, noise, 0o644); err != nil {
		t.Fatal(err)
	}
	w.Commit("b", "b")
	out, err := gittest.Try(t, w.Dir, "push", h.at("refused"), "main", "dev")
	if err == nil {
		t.Fatal("the push succeeded")
	}
	for _, want := range []string{"remote: " + reason, "[remote rejected] main -> main (" + reason + ")", "[remote rejected] dev -> dev"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not on the terminal:\n%s", want, out)
		}
	}
	for _, bad := range []string{"RPC failed", "unexpected disconnect", "hung up", "HTTP 4", "HTTP 5"} {
		if strings.Contains(out, bad) {
			t.Errorf("%q is on the terminal:\n%s", bad, out)
		}
	}
	if data, err := r.HasObjects(); err != nil || data || len(h.refs(r)) != 0 {
		t.Errorf("something came into the repository: %v, %v", h.refs(r), err)
	}
	if h.counted("ngit_git_push_authorization_total", "denied") != 1 || h.counted("ngit_git_operations_total", "receive_pack", "refused", "error") != 1 {
		t.Error("the refusal was not counted")
	}
}

func TestOtherFailuresOfTheAuthorityTellNothing(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("failing")
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	for name, push := range map[string]func(context.Context, []githttp.Command, func(context.Context) error) error{
		"before": func(context.Context, []githttp.Command, func(context.Context) error) error {
			return errors.New("secret-host: no responders")
		},
		"after": func(ctx context.Context, _ []githttp.Command, receive func(context.Context) error) error {
			return errors.Join(receive(ctx), errors.New("secret-host: not committed"))
		},
		"never received": func(context.Context, []githttp.Command, func(context.Context) error) error { return nil },
	} {
		h.authority.push = push
		out, err := gittest.Try(t, w.Dir, "push", h.at("failing"), "main:refs/heads/"+strings.ReplaceAll(name, " ", "-"))
		if err == nil || !strings.Contains(out, "[remote rejected]") || strings.Contains(out, "secret") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestFullDiskIsToldToTheUserAndNothingStaysOnIt(t *testing.T) {
	a := &authority{store: gittest.CrampedStore(t, 256), known: map[string]bool{"full": true}, push: takeAll}
	r := gittest.Repo(t, a.store, "full")
	var log bytes.Buffer
	server := httptest.NewServer(githttp.New(a, githttp.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}))
	h := &house{TB: t, Server: server, authority: a}
	w := gittest.NewWork(t)
	w.Commit("a", gittest.Noise(600<<10)) // in memory on its way in, so that only git meets the limit
	out, err := gittest.Try(t, w.Dir, "push", h.at("full"), "main")
	server.Close()
	if err == nil || !strings.Contains(out, "[remote rejected] main -> main ("+githttp.Unwritable+")") || strings.Contains(out, "too large") {
		t.Errorf("the terminal says:\n%s", out)
	}
	if !strings.Contains(log.String(), "File too large") {
		t.Errorf("the log says:\n%s", &log)
	}
	if size, err := r.Bytes(); err != nil || size > 64<<10 {
		t.Errorf("%d bytes are left, %v", size, err)
	}
}

func TestWhatGitRefusesIsRefusedWhole(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("stale")
	var received error
	h.authority.push = func(ctx context.Context, _ []githttp.Command, receive func(context.Context) error) error {
		received = receive(ctx)
		return received
	}
	w := gittest.NewWork(t)
	first := w.Commit("a", "a")
	w.Git("push", h.at("stale"), "main")
	second := w.Commit("b", "b")

	// One command is right, the other expects main where it is not.
	body := pkt(githttp.ZeroID+" "+second+" refs/heads/dev\x00 report-status side-band-64k", second+" "+second+" refs/heads/main") +
		string(w.Pack("main"))
	status, _, answer := h.send("POST", h.at("stale")+"/git-receive-pack", map[string]string{"Content-Type": receiveType}, strings.NewReader(body))
	if status != 200 || !strings.Contains(answer, "ng refs/heads/main") || !strings.Contains(answer, "ng refs/heads/dev") {
		t.Errorf("answer %d %q", status, answer)
	}
	if received == nil {
		t.Error("the authority was told that all was applied")
	}
	if got := h.refs(r); len(got) != 1 || got["refs/heads/main"] != first {
		t.Errorf("references %v", got)
	}
}

func TestPushOfBadPacksIsRefused(t *testing.T) {
	t.Parallel()
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	commit := w.Commit("b", "b")
	whole := w.Pack("main")
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 0x40
	for name, pack := range map[string][]byte{
		"damaged":      damaged,
		"missing link": w.PackOf(commit, w.Git("rev-parse", "main^{tree}")),
		"truncated":    whole[:len(whole)/2],
		"none":         nil,
		"no pack":      []byte("a story about something else"),
		"too many":     []byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff0000000"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serve(t, githttp.Options{})
			r := h.repo("bad")
			for _, shallow := range []string{"", "shallow " + commit} {
				lines := []string{githttp.ZeroID + " " + commit + " refs/heads/main\x00 report-status side-band-64k agent=x"}
				if shallow != "" {
					lines = append([]string{shallow}, lines...)
				}
				status, _, answer := h.send("POST", h.at("bad")+"/git-receive-pack", map[string]string{"Content-Type": receiveType},
					strings.NewReader(pkt(lines...)+string(pack)))
				if status != 200 || !strings.Contains(answer, "ng refs/heads/main") || strings.Contains(answer, r.Path()) {
					t.Errorf("answer %d %q", status, answer)
				}
				if data, err := r.HasObjects(); err != nil || data || len(h.refs(r)) != 0 {
					t.Errorf("something came into the repository: %v, %v", h.refs(r), err)
				}
			}
		})
	}
}

func TestPushFromAShallowCloneStandsOnWhatIsHere(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("shallow")
	h.repo("other")
	w := gittest.NewWork(t)
	w.Commit("a", "a")
	w.Commit("b", "b")
	w.Git("push", h.at("shallow"), "main")
	clone := &gittest.Work{TB: t, Dir: filepath.Join(t.TempDir(), "clone")}
	gittest.Git(t, t.TempDir(), "clone", "--quiet", "--depth=1", h.at("shallow"), clone.Dir)
	id := clone.Commit("c", "c")
	clone.Git("push", h.at("shallow"), "main")
	if got := h.refs(r)["refs/heads/main"]; got != id {
		t.Errorf("main is at %s, want %s", got, id)
	}
	if out, err := gittest.Try(t, clone.Dir, "push", h.at("other"), "main"); err == nil {
		t.Errorf("a history without its beginning was taken:\n%s", out)
	}
	gittest.Git(t, r.Path(), "fsck", "--full")
}

// pkt writes lines as a section of pkt-lines.
func pkt(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&b, "%04x%s", len(line)+4, line)
	}
	return b.String() + "0000"
}

func TestPushIsBounded(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{MaxPushBytes: 1 << 20})
	r := h.repo("big")
	w := gittest.NewWork(t)
	noise := make([]byte, 3<<20)
	rand.Read(noise)
	w.Commit("noise", string(noise))
	out, err := gittest.Try(t, w.Dir, "push", h.at("big"), "main")
	if err == nil || !strings.Contains(out, "remote: the push is larger than 1048576 bytes") {
		t.Errorf("%v\n%s", err, out)
	}
	if data, err := r.HasObjects(); err != nil || data {
		t.Errorf("has data: %v, %v", data, err)
	}
	entries, err := os.ReadDir(filepath.Join(r.Path(), "objects"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "tmp_") {
			t.Errorf("left behind: %s", entry.Name())
		}
	}
}

func TestMalformedPushesAreBadRequests(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("malformed")
	h.authority.push = func(context.Context, []githttp.Command, func(context.Context) error) error {
		t.Error("the authority was asked")
		return nil
	}
	for _, body := range []string{"", "000", "0003", "zzzz", "0008abcd", pkt("hello"), "00ff" + githttp.ZeroID, pkt("push-cert\x00x")} {
		status, _, answer := h.send("POST", h.at("malformed")+"/git-receive-pack", map[string]string{"Content-Type": receiveType}, strings.NewReader(body))
		if status != 400 || !strings.HasPrefix(answer, "bad request: ") {
			t.Errorf("%q: %d %q", body, status, answer)
		}
	}
	if status, _, answer := h.send("POST", h.at("malformed")+"/git-receive-pack", map[string]string{"Content-Type": receiveType},
		strings.NewReader("0000")); status != 200 || answer != "" {
		t.Errorf("a probe: %d %q", status, answer)
	}
}

func TestReportInTheFormTheClientAskedFor(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("forms")
	h.authority.push = func(context.Context, []githttp.Command, func(context.Context) error) error {
		return githttp.Refuse("no\nand  no")
	}
	id := strings.Repeat("7", 40)
	report := "000eunpack ok\n" + "001eng refs/heads/x no and no\n"
	for capabilities, want := range map[string]string{
		"":                            "",
		"report-status":               report + "0000",
		"report-status-v2":            report + "0000",
		"side-band-64k":               "0010\x02no\nand  no\n0000",
		"side-band-64k report-status": "0010\x02no\nand  no\n",
	} {
		status, _, answer := h.send("POST", h.at("forms")+"/git-receive-pack", map[string]string{"Content-Type": receiveType},
			strings.NewReader(pkt(id+" "+githttp.ZeroID+" refs/heads/x\x00"+capabilities)))
		if status != 200 || !strings.HasPrefix(answer, want) || (want == "" && answer != "") {
			t.Errorf("%q: %d %q, want %q", capabilities, status, answer, want)
		}
	}
}

func TestGzipIsUnpackedAndBounded(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("gzip")
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	zipped := func(content io.Reader) *bytes.Buffer {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := io.Copy(z, content); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	body := zipped(strings.NewReader(pkt(githttp.ZeroID+" "+id+" refs/heads/main\x00report-status") + string(w.Pack("main"))))
	header := map[string]string{"Content-Type": receiveType, "Content-Encoding": "gzip"}
	status, _, answer := h.send("POST", h.at("gzip")+"/git-receive-pack", header, body)
	if status != 200 || !strings.Contains(answer, "ok refs/heads/main") || h.refs(r)["refs/heads/main"] != id {
		t.Errorf("a push: %d %q", status, answer)
	}
	header["Content-Type"] = "application/x-git-upload-pack-request"
	fetch := fmt.Sprintf("%s0009done\n", pkt("want "+id+" ofs-delta\n"))
	if status, _, answer := h.send("POST", h.at("gzip")+"/git-upload-pack", header, zipped(strings.NewReader(fetch))); status != 200 ||
		!strings.HasPrefix(answer, "0008NAK\nPACK") {
		t.Errorf("a fetch: %d %q", status, answer)
	}
	// 50 MB of haves in 50 kB.
	bomb := zipped(io.MultiReader(strings.NewReader(pkt("want "+id+" ofs-delta\n")),
		strings.NewReader(strings.Repeat("0032have "+strings.Repeat("8", 40)+"\n", 1_000_000))))
	if status, _, answer := h.send("POST", h.at("gzip")+"/git-upload-pack", header, bomb); status != 413 {
		t.Errorf("a bomb: %d %.100q", status, answer)
	}
}

func TestClientThatWaitsIsKeptAlive(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{KeepAlive: 10 * time.Millisecond})
	h.repo("slow")
	proceed := make(chan struct{})
	h.authority.push = func(ctx context.Context, _ []githttp.Command, receive func(context.Context) error) error {
		err := receive(ctx)
		<-proceed
		return err
	}
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	read, write := io.Pipe()
	go func() {
		io.WriteString(write, pkt(githttp.ZeroID+" "+id+" refs/heads/main\x00report-status side-band-64k")+string(w.Pack("main")))
		write.Close()
	}()
	request, err := http.NewRequestWithContext(t.Context(), "POST", h.at("slow")+"/git-receive-pack", read)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", receiveType)
	response, err := h.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	alive := make([]byte, 5)
	if _, err := io.ReadFull(response.Body, alive); err != nil || string(alive) != "0005\x01" {
		t.Errorf("%q comes first, %v", alive, err)
	}
	close(proceed)
	if answer, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(answer), "ok refs/heads/main") {
		t.Errorf("answer %q, %v", answer, err)
	}
	out, err := gittest.Try(t, w.Dir, "push", h.at("slow"), "main:refs/heads/dev")
	if err != nil {
		t.Errorf("git does not understand it: %v\n%s", err, out)
	}
}

// TestClientThatSendsTooSlowlyIsCutOff: over a pipe in a bubble, where nobody is slow because the
// machine is.
func TestClientThatSendsTooSlowlyIsCutOff(t *testing.T) {
	t.Parallel()
	const stall = time.Minute
	w := gittest.NewWork(t)
	id := w.Commit("noise", gittest.Noise(200<<10))
	pack := string(w.Pack("main"))
	commands := pkt(githttp.ZeroID + " " + id + " refs/heads/main\x00report-status")
	part := 100 << 10 // more than a chunk
	for name, test := range map[string]struct {
		send func(w io.Writer)
		took time.Duration
	}{
		"stalls": {func(w io.Writer) {
			time.Sleep(stall - time.Second) // slow is not stalled
			io.WriteString(w, commands+pack[:part])
		}, 2*stall - time.Second},
		"trickles": {func(w io.Writer) {
			io.WriteString(w, commands)
			for _, c := range []byte(pack) {
				time.Sleep(time.Second)
				if _, err := w.Write([]byte{c}); err != nil {
					return
				}
			}
		}, stall},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &authority{store: gittest.Store(t), known: map[string]bool{"slow": true}}
			a.push = func(context.Context, []githttp.Command, func(context.Context) error) error {
				t.Error("the authority was asked to lock for a client that does not send")
				return nil
			}
			gittest.Repo(t, a.store, "slow")
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewPedanticRegistry()
				metrics, err := githttp.NewMetrics(registry, 2)
				if err != nil {
					t.Fatal(err)
				}
				l := nettest.Listen()
				server := &http.Server{Handler: githttp.New(a, githttp.Options{Stall: stall, Metrics: metrics})}
				go server.Serve(l)
				defer server.Close()
				transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx) }}
				defer transport.CloseIdleConnections()
				h := &house{TB: t, Server: &httptest.Server{URL: "http://pipe"}, authority: a, registry: registry, client: &http.Client{Transport: transport}}
				read, write := io.Pipe()
				var sending sync.WaitGroup
				sending.Go(func() { test.send(write) })
				defer sending.Wait()
				defer read.Close()
				began := time.Now()
				status, _, answer := h.send("POST", h.at("slow")+"/git-receive-pack", map[string]string{"Content-Type": receiveType}, read)
				if status != 200 || !strings.Contains(answer, "ng refs/heads/main the request came too slowly: less than 32768 bytes in 1m0s") {
					t.Errorf("answer %d %q", status, answer)
				}
				if took := time.Since(began); took < test.took || took > test.took+time.Second {
					t.Errorf("cut off after %v, want %v", took, test.took)
				}
				if h.counted("ngit_git_operations_total", "receive_pack", "slow", "error") != 1 {
					t.Error("it was not counted")
				}
			})
		})
	}
}

func TestLargePacksAreAskedAboutBeforeTheyAreRead(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("large")
	var asked, took []githttp.PushRequest
	h.authority.authorize = func(push githttp.PushRequest) error {
		asked = append(asked, push)
		return nil
	}
	h.authority.pushed = func(push githttp.PushRequest) { took = append(took, push) }
	w := gittest.NewWork(t)
	noise := make([]byte, 3<<20)
	rand.Read(noise)
	id := w.Commit("noise", string(noise))
	front := httptest.NewServer(proxyTo(t, h.URL)) // as the front door does
	t.Cleanup(front.Close)
	w.Git("push", strings.Replace(h.at("large"), h.URL, front.URL, 1), "main")
	if got := h.refs(r)["refs/heads/main"]; len(asked) != 1 || len(took) != 1 || got != id {
		t.Fatalf("asked %d times, taken %d times, main is at %q", len(asked), len(took), got)
	}
	if asked[0].PackBytes != 0 || took[0].PackBytes < int64(len(noise)) || took[0].Commands[0].New != id {
		t.Errorf("asked about %+v, then pushed %+v", asked[0], took[0])
	}
	if h.counted("ngit_git_push_authorization_total", "allowed") != 1 {
		t.Error("counted more than once")
	}
	h.authority.authorize = func(githttp.PushRequest) error { return githttp.Refuse("not you") }
	rand.Read(noise)
	w.Commit("noise", string(noise))
	out, err := gittest.Try(t, w.Dir, "push", strings.Replace(h.at("large"), h.URL, front.URL, 1), "main:refs/heads/other")
	if err == nil || !strings.Contains(out, "remote: not you") || strings.Contains(out, "RPC failed") {
		t.Errorf("through a proxy: %v\n%s", err, out)
	}
	left, err := os.ReadDir(filepath.Join(r.Path(), "..", "..", ".new"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func proxyTo(t *testing.T, target string) http.Handler {
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
	}
}

func TestNothingOfTheEnvironmentOrTheRepositoryRunsAlong(t *testing.T) {
	marks := t.TempDir()
	script := func(name string) string {
		return "#!/bin/sh\ntouch " + filepath.Join(marks, name) + "\n"
	}
	hooks := t.TempDir()
	for _, hook := range []string{"pre-receive", "post-receive", "update", "post-update", "reference-transaction", "proc-receive"} {
		if err := os.WriteFile(filepath.Join(hooks, hook), []byte(script(hook)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := serve(t, githttp.Options{})
	r := h.repo("hooked")
	if err := os.CopyFS(filepath.Join(r.Path(), "hooks"), os.DirFS(hooks)); err != nil {
		t.Fatal(err)
	}
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	pack := w.Pack("main")
	t.Setenv("GIT_CONFIG_PARAMETERS", "'core.hookspath="+hooks+"'")
	t.Setenv("GIT_DIR", marks)
	t.Setenv("GIT_EXEC_PATH", hooks)
	status, _, answer := h.send("POST", h.at("hooked")+"/git-receive-pack", map[string]string{"Content-Type": receiveType},
		strings.NewReader(pkt(githttp.ZeroID+" "+id+" refs/heads/main\x00report-status")+string(pack)))
	if status != 200 || !strings.Contains(answer, "ok refs/heads/main") {
		t.Errorf("answer %d %q", status, answer)
	}
	if left, err := os.ReadDir(marks); err != nil || len(left) > 0 {
		t.Errorf("these ran: %v, %v", left, err)
	}
}
