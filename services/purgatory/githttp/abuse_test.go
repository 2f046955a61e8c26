package githttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// besieged serves with few git processes, and cuts nobody off for being slow while a test lasts.
func besieged(t *testing.T, o githttp.Options) *house {
	t.Helper()
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Processes: 8})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	if o.Metrics, err = githttp.NewMetrics(registry, 2); err != nil {
		t.Fatal(err)
	}
	o.Stall = 24 * time.Hour
	a := &authority{store: store, known: map[string]bool{}, push: takeAll}
	server := httptest.NewServer(githttp.New(a, o))
	t.Cleanup(server.Close)
	return &house{TB: t, Server: server, authority: a, registry: registry}
}

// open sends a request, or a part of one, over a connection of its own, from which nothing is read
// until the test ends.
func (h *house) open(client, request string) net.Conn {
	h.Helper()
	at, err := url.Parse(h.URL)
	if err != nil {
		h.Fatal(err)
	}
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { conn.Close() })
	conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	head, body, _ := strings.Cut(request, "\r\n")
	if client != "" {
		head += "\r\n" + proto.HeaderClient + ": " + client
	}
	if _, err := io.WriteString(conn, head+"\r\nHost: "+at.Host+"\r\n"+body); err != nil {
		h.Fatal(err)
	}
	return conn
}

// path is where a repository is served, as a request names it.
func (h *house) path(identifier string) string { return strings.TrimPrefix(h.at(identifier), h.URL) }

// notices is a normal user, who lists, clones and pushes, and must notice nothing.
func (h *house) notices(identifier string) {
	h.Helper()
	git := func(dir string, args ...string) {
		h.Helper()
		if out, err := gittest.Try(h, dir, append([]string{"-c", "http.extraHeader=" + proto.HeaderClient + ": 198.51.100.1"}, args...)...); err != nil {
			h.Errorf("git %s: %v\n%s", args[0], err, out)
		}
	}
	clone := &gittest.Work{TB: h, Dir: filepath.Join(h.TempDir(), "clone")}
	git(h.TempDir(), "ls-remote", h.at(identifier))
	git(h.TempDir(), "clone", "--quiet", h.at(identifier), clone.Dir)
	if h.Failed() {
		return
	}
	clone.Commit("small", "a")
	git(clone.Dir, "push", "--quiet", h.at(identifier), "HEAD:refs/heads/small")
	clone.Commit("large", gittest.Noise(3<<20)) // more than is kept in memory
	git(clone.Dir, "push", "--quiet", h.at(identifier), "HEAD:refs/heads/large")
}

// clients name who attacks.
var clients = map[string]func(i int) string{
	"one address":    func(int) string { return "203.0.113.7" },
	"many addresses": func(i int) string { return fmt.Sprintf("2001:db8:0:%x::/64", i) },
}

// TestSlowRequestsDelayNobody: each sends the beginning of a request and then nothing.
func TestSlowRequestsDelayNobody(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("7", 40)
	for name, request := range map[string]struct{ service, body string }{
		"fetch": {"git-upload-pack", "0032want " + id + "\n"},
		"push":  {"git-receive-pack", pkt(githttp.ZeroID+" "+id+" refs/heads/x\x00report-status") + "PACK\x00\x00\x00\x02\x00\x00\x00\x01"},
	} {
		for who, client := range clients {
			const sockets = 200
			t.Run(fmt.Sprintf("%s %s", name, who), func(t *testing.T) {
				t.Parallel()
				h := besieged(t, githttp.Options{})
				h.repo("x")
				w := gittest.NewWork(t)
				w.Commit("a", "a")
				w.Git("push", h.at("x"), "main")
				before := h.authority.asked.Load()
				for i := range sockets {
					h.open(client(i), "POST "+h.path("x")+"/"+request.service+" HTTP/1.1\r\nContent-Type: application/x-"+request.service+
						"-request\r\nContent-Length: 100000\r\n\r\n"+request.body)
				}
				h.until("all have been let in", func() bool { return h.authority.asked.Load() >= before+int64(sockets) })
				h.notices("x")
			})
		}
	}
}

// TestSlowReadersDelayNobody: each asks for a clone, and reads nothing of it.
func TestSlowReadersDelayNobody(t *testing.T) {
	t.Parallel()
	for who, client := range clients {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			h := besieged(t, githttp.Options{})
			h.repo("x")
			w := gittest.NewWork(t)
			id := w.Commit("a", gittest.Noise(8<<20))
			w.Git("push", h.at("x"), "main")
			h.cloneAndReadNothing(30, client, id)
			h.until("git has ended for all", func() bool {
				return h.counted("ngit_git_bytes_total", "in") > 0 && h.authority.asked.Load() >= 30
			})
			h.notices("x")
		})
	}
}

// TestSlowReadersOfOneAddressHoldAShare where there is no room on disk, and git has to wait for
// them.
func TestSlowReadersOfOneAddressHoldAShare(t *testing.T) {
	t.Parallel()
	h := besieged(t, githttp.Options{SpoolBytes: 1 << 20, MaxPushBytes: 12 << 20})
	h.repo("x")
	w := gittest.NewWork(t)
	id := w.Commit("a", gittest.Noise(8<<20))
	w.Git("push", h.at("x"), "main")
	before := h.authority.asked.Load()
	h.cloneAndReadNothing(60, clients["one address"], id)
	h.until("all have been let in", func() bool { return h.authority.asked.Load() >= before+60 })
	h.notices("x")
}

func (h *house) cloneAndReadNothing(sockets int, client func(int) string, id string) {
	h.Helper()
	body := pkt("want "+id+" ofs-delta\n") + "0009done\n"
	for i := range sockets {
		h.open(client(i), fmt.Sprintf("POST %s/git-upload-pack HTTP/1.1\r\nContent-Type: application/x-git-upload-pack-request\r\nContent-Length: %d\r\n\r\n%s",
			h.path("x"), len(body), body))
	}
}

func (h *house) until(what string, holds func() bool) {
	h.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.Fatalf("not in time: %s", what)
		}
	}
}

// TestWhoReadsNothingIsCutOff, so that what it holds is free.
func TestWhoReadsNothingIsCutOff(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{Stall: 10 * time.Millisecond})
	r := h.repo("x")
	w := gittest.NewWork(t)
	id := w.Commit("a", gittest.Noise(20<<20)) // more than sockets take
	gittest.Fill(t, r, w.Pack("main"))
	if err := r.SetRef(t.Context(), "refs/heads/main", id); err != nil {
		t.Fatal(err)
	}
	h.cloneAndReadNothing(1, clients["one address"], id)
	h.until("it is cut off", func() bool { return h.counted("ngit_git_operations_total", "upload_pack", "slow", "error") == 1 })
}

// TestAnswersOverUnreadRequests come at once and close the connection, however slowly the rest of
// the request would come. One that was read to its end leaves the connection as it was.
func TestAnswersOverUnreadRequests(t *testing.T) {
	t.Parallel()
	h := besieged(t, githttp.Options{})
	h.repo("x")
	const upload, receive = "git-upload-pack", "git-receive-pack"
	for name, c := range map[string]struct {
		path, kind, body string
		length           int
		status           string
		closed           bool
	}{
		"no repository":    {h.path("y") + "/" + upload, upload, "0032want", 100_000, "404", true},
		"no path":          {"/nothing", upload, "0032want", 100_000, "404", true},
		"another type":     {h.path("x") + "/" + upload, "nothing", "0032want", 100_000, "415", true},
		"no commands":      {h.path("x") + "/" + receive, receive, "this is no command", 100_000, "400", true},
		"no gzip":          {h.path("x") + "/" + upload, upload, "0032want and no more", 100_000, "400", true},
		"a whole request":  {h.path("x") + "/" + receive, receive, "0000", 4, "200", false},
		"a whole one, 404": {h.path("y") + "/" + upload, upload, "", 0, "404", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			encoding := ""
			if name == "no gzip" {
				encoding = "Content-Encoding: gzip\r\n"
			}
			conn := h.open("", fmt.Sprintf("POST %s HTTP/1.1\r\nContent-Type: application/x-%s-request\r\n%sContent-Length: %d\r\n\r\n%s",
				c.path, c.kind, encoding, c.length, c.body))
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(answer.Status, c.status) || answer.Close != c.closed {
				t.Errorf("answered by %s, and the connection closes: %v", answer.Status, answer.Close)
			}
			if !c.closed {
				return
			}
			if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection stays open")
			}
		})
	}
}
