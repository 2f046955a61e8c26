package githttp_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture/gittest"
)

// besieged serves a repository "x" with few git processes, and cuts no client off for being slow
// while a test lasts. content is in its main branch.
func besieged(t *testing.T, o githttp.Options, content string) (h *house, id string) {
	t.Helper()
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Processes: 8})
	must(t, err)
	o.Stall = 24 * time.Hour
	h = serveFrom(t, store, o)
	h.repo("x")
	w := gittest.NewWork(t)
	id = w.Commit("a", content)
	w.Git("push", h.at("x"), "main")
	return h, id
}

// open sends a request, or a part of one, over a connection of its own, from which nothing is read
// until the test ends.
func (h *house) open(client, path, kind, header string, length int, body string) net.Conn {
	h.Helper()
	host := h.Listener.Addr().String()
	conn, err := net.Dial("tcp", host)
	must(h, err)
	h.Cleanup(func() { conn.Close() })
	conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\n%s: %s\r\nContent-Type: application/x-%s-request\r\n%sContent-Length: %d\r\n\r\n%s",
		path, host, proto.HeaderClient, client, kind, header, length, body)
	must(h, err)
	return conn
}

// letIn opens so many requests, and waits until the server has begun with them all.
func (h *house) letIn(sockets int, client func(int) string, service string, length int, body string) {
	h.Helper()
	before := h.authority.asked.Load()
	for i := range sockets {
		h.open(client(i), path("x")+"/"+service, service, "", length, body)
	}
	h.until("all have been let in", func() bool { return h.authority.asked.Load() >= before+int64(sockets) })
}

// cloneAndReadNothing opens requests for all of a repository.
func (h *house) cloneAndReadNothing(sockets int, client func(int) string, id string) {
	h.Helper()
	body := pkt("want "+id+" ofs-delta\n") + "0009done\n"
	h.letIn(sockets, client, "git-upload-pack", len(body), body)
}

// notices is a normal user, who lists, clones and pushes, and must notice nothing.
func (h *house) notices() {
	h.Helper()
	git := func(dir string, args ...string) {
		h.Helper()
		gittest.Git(h, dir, append([]string{"-c", "http.extraHeader=" + proto.HeaderClient + ": 198.51.100.1"}, args...)...)
	}
	clone := &gittest.Work{TB: h, Dir: filepath.Join(h.TempDir(), "clone")}
	git(h.TempDir(), "ls-remote", h.at("x"))
	git(h.TempDir(), "clone", "--quiet", h.at("x"), clone.Dir)
	clone.Commit("small", "a")
	git(clone.Dir, "push", "--quiet", h.at("x"), "HEAD:refs/heads/small")
	clone.Commit("large", gittest.Noise(3<<20)) // more than is kept in memory
	git(clone.Dir, "push", "--quiet", h.at("x"), "HEAD:refs/heads/large")
}

func oneAddress(int) string { return "203.0.113.7" }

// clients name who attacks.
var clients = map[string]func(i int) string{
	"one address":    oneAddress,
	"many addresses": func(i int) string { return fmt.Sprintf("2001:db8:0:%x::/64", i) },
}

// TestSlowClientsDelayNoOther: some send the beginning of a request and then nothing, others read
// nothing of a clone, where there is room on disk for it and where git has to wait for them.
func TestSlowClientsDelayNoOther(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("7", 40)
	for who, client := range clients {
		for service, body := range map[string]string{
			"git-upload-pack":  "0032want " + id + "\n",
			"git-receive-pack": pkt(creates("refs/heads/x", id, "report-status")) + "PACK\x00\x00\x00\x02\x00\x00\x00\x01",
		} {
			t.Run(service+" "+who, func(t *testing.T) {
				t.Parallel()
				h, _ := besieged(t, githttp.Options{}, "a")
				h.letIn(200, client, service, 100_000, body)
				h.notices()
			})
		}
		t.Run("reads nothing "+who, func(t *testing.T) {
			t.Parallel()
			h, id := besieged(t, githttp.Options{}, gittest.Noise(8<<20))
			h.cloneAndReadNothing(30, client, id)
			h.notices()
		})
	}
	t.Run("reads nothing, without room", func(t *testing.T) {
		t.Parallel()
		h, id := besieged(t, githttp.Options{SpoolBytes: 1 << 20, MaxPushBytes: 12 << 20}, gittest.Noise(8<<20))
		h.cloneAndReadNothing(60, oneAddress, id)
		h.notices()
	})
}

// TestClientThatReadsNothingIsCutOff, so that what it holds is free.
func TestClientThatReadsNothingIsCutOff(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{Stall: 10 * time.Millisecond})
	r := h.repo("x")
	w := gittest.NewWork(t)
	id := w.Commit("a", gittest.Noise(20<<20)) // more than sockets take
	gittest.Fill(t, r, w.Pack("main"))
	must(t, r.SetRef(t.Context(), "refs/heads/main", id))
	h.cloneAndReadNothing(1, oneAddress, id)
	h.until("it is cut off", func() bool { return h.operations("upload_pack", "slow") == 1 })
}

// TestAnswersOverUnreadRequests come at once and close the connection, however slowly the rest of
// the request would come. One that was read to its end leaves the connection as it was.
func TestAnswersOverUnreadRequests(t *testing.T) {
	t.Parallel()
	h, _ := besieged(t, githttp.Options{}, "a")
	const upload, receive = "git-upload-pack", "git-receive-pack"
	for name, c := range map[string]struct {
		path, kind, header, body string
		length                   int
		status                   string
		closed                   bool
	}{
		"no repository":    {path("y") + "/" + upload, upload, "", "0032want", 100_000, "404", true},
		"no path":          {"/nothing", upload, "", "0032want", 100_000, "404", true},
		"another type":     {path("x") + "/" + upload, "nothing", "", "0032want", 100_000, "415", true},
		"no commands":      {path("x") + "/" + receive, receive, "", "this is no command", 100_000, "400", true},
		"no gzip":          {path("x") + "/" + upload, upload, "Content-Encoding: gzip\r\n", "0032want and no more", 100_000, "400", true},
		"a whole request":  {path("x") + "/" + receive, receive, "", "0000", 4, "200", false},
		"a whole one, 404": {path("y") + "/" + upload, upload, "", "", 0, "404", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := h.open("", c.path, c.kind, c.header, c.length, c.body)
			must(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			_, err = io.Copy(io.Discard, answer.Body)
			must(t, err)
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

// TestBombs: a pack that is small on the wire and large, or endless, for who believes it is
// refused, and nothing of it stays.
func TestBombs(t *testing.T) {
	t.Parallel()
	small := []byte("hello")
	grow := append(deltaHeader(5, 4<<30), 0x90, 5)
	for name, pack := range map[string][]byte{
		"blobs of zeros":                packOf(slices.Repeat([][]byte{zeros(3, 32<<20)}, 4)...),
		"a tree of zeros":               packOf(zeros(2, 64<<20)),
		"a delta that makes 4 GiB":      packOf(blob(small), refDelta(small, grow)),
		"2^32-1 objects":                []byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff0000000000000000000000"),
		"20 million objects in nothing": packThatClaims(20_000_000, blob(small)),
		"deltas of 5 GiB":               packOf(slices.Repeat([][]byte{refDelta(small, deltaHeader(5, 512<<20))}, 10)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serve(t, githttp.Options{})
			r := h.repo("bomb")
			if _, answer := h.push("bomb", pack, creates("refs/tags/bomb", blobID(small), "report-status")); !strings.Contains(answer, "ng refs/tags/bomb") {
				t.Errorf("answer %q", answer)
			}
			h.untouched(r)
			if err := gittest.Take(t, r, pack, blobID(small)); !errors.Is(err, repository.ErrBadPack) {
				t.Errorf("fetched: %v", err)
			}
			h.untouched(r)
			if h.operations("receive_pack", "refused") != 1 {
				t.Error("it was not counted")
			}
		})
	}
}

// deltas is a pack of a blob and of deltas, each of which is made from the one before it and is a
// byte longer, and the id of the last.
func deltas(size, many int) (pack []byte, last string) {
	content := make([]byte, size)
	entries := [][]byte{blob(content)}
	for range many {
		length := uint64(len(content))
		delta := append(deltaHeader(length, length+1), 0xf0, byte(length), byte(length>>8), byte(length>>16), 1, 'x') // copy all, add one
		entries = append(entries, offsetDelta(len(entries[len(entries)-1]), delta))
		content = append(content, 'x')
	}
	return packOf(entries...), blobID(content)
}

// TestGitIsEndedWhenItTakesTooLong: with a pack of 64 KiB that it needs to make 3 GB of, within all
// bounds.
func TestGitIsEndedWhenItTakesTooLong(t *testing.T) {
	t.Parallel()
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Processes: 5, PackTime: 100 * time.Millisecond})
	must(t, err)
	h := serveFrom(t, store, githttp.Options{})
	r := h.repo("long")
	pack, last := deltas(3<<20, 1000)
	for range 2 { // the second finds the only slot free
		// Git that had to be killed leaves this.
		must(t, os.MkdirAll(filepath.Join(r.Path, "objects", "tmp_objdir-incoming-abc", "pack"), 0o755))
		_, answer := h.push("long", pack, creates("refs/tags/bomb", last, "report-status"))
		if !strings.Contains(answer, "ng refs/tags/bomb the push takes too long to check; push less at once") {
			t.Errorf("answer %q", answer)
		}
		h.untouched(r)
	}
	if err := gittest.Take(t, r, pack, last); !errors.Is(err, repository.ErrBadPack) || !errors.Is(err, repository.ErrTooLong) {
		t.Errorf("fetched: %v", err)
	}
	h.untouched(r)

	h = serve(t, githttp.Options{}) // a shorter one is what git reads
	h.repo("short")
	pack, last = deltas(1000, 100)
	if _, answer := h.push("short", pack, creates("refs/tags/bomb", last, "report-status")); !strings.Contains(answer, "ok refs/tags/bomb") {
		t.Errorf("answer %q", answer)
	}
}
