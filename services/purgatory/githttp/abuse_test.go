package githttp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// open sends a request, or a part of one, over a connection of its own, from which nothing is read
// until the test ends.
func (h *house) open(path, kind, header string, length int, body string) net.Conn {
	h.Helper()
	host := h.Listener.Addr().String()
	conn, err := net.Dial("tcp", host)
	must(h, err)
	h.Cleanup(func() { conn.Close() })
	conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-%s-request\r\n%sContent-Length: %d\r\n\r\n%s",
		path, host, kind, header, length, body)
	must(h, err)
	return conn
}

// TestClientThatReadsNothingIsCutOff, so that what it holds is free.
func TestClientThatReadsNothingIsCutOff(t *testing.T) {
	h, r, w := begin(t, githttp.Options{Stall: 10 * time.Millisecond})
	id := w.Commit("a", gittest.Noise(10<<20)) // more than sockets take
	gittest.Fill(t, r, w.Pack("main"))
	gittest.Do(t, r, func(r *repository.Locked) error { return r.SetRef(t.Context(), "refs/heads/main", id) })
	body := gittest.Pkt("want "+id+" ofs-delta\n") + "0009done\n"
	h.open(path("x")+"/git-upload-pack", "git-upload-pack", "", len(body), body)
	fixture.Await(t, "it is cut off", func() bool { return h.operations("upload_pack", "slow") == 1 })
}

// TestAnswersOverUnreadRequests come at once and close the connection, however slowly the rest of
// the request would come. One that was read to its end leaves the connection as it was.
func TestAnswersOverUnreadRequests(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{Stall: 24 * time.Hour})
	h.repo("x")
	const upload, receive = "git-upload-pack", "git-receive-pack"
	for name, c := range map[string]struct {
		path, kind, header, body string
		length                   int
		status                   string
		closed                   bool
	}{
		"no repository":   {path("y") + "/" + upload, upload, "", "0032want", 100_000, "404", true},
		"no commands":     {path("x") + "/" + receive, receive, "", "this is no command", 100_000, "400", true},
		"a whole request": {path("x") + "/" + receive, receive, "", "0000", 4, "200", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := h.open(c.path, c.kind, c.header, c.length, c.body)
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

// packThatClaims writes a pack that says it has that many objects, of one of a kind (2 tree, 3
// blob).
func packThatClaims(n int, kind byte, content []byte) []byte {
	pack := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(n))
	size := uint64(len(content))
	pack = binary.AppendUvarint(append(pack, 0x80|kind<<4|byte(size&15)), size>>4)
	b := bytes.NewBuffer(pack)
	z := zlib.NewWriter(b)
	z.Write(content)
	z.Close()
	sum := sha1.Sum(b.Bytes())
	return append(b.Bytes(), sum[:]...)
}

// TestBombs: a pack that is small on the wire and large, or endless, for who believes it is
// refused, and nothing of it stays.
func TestBombs(t *testing.T) {
	t.Parallel()
	small := "ce013625030ba8dba906f756967f9e9ca394464a" // "hello\n"
	for name, pack := range map[string][]byte{
		"a tree of zeros":               packThatClaims(1, 2, make([]byte, 64<<20)),
		"2^32-1 objects":                []byte("PACK\x00\x00\x00\x02\xff\xff\xff\xff0000000000000000000000"),
		"20 million objects in nothing": packThatClaims(20_000_000, 3, []byte("hello\n")),
	} {
		h := serve(t, githttp.Options{})
		r := h.repo("bomb")
		if _, answer := h.push("bomb", pack, creates("refs/tags/bomb", small, "report-status")); !strings.Contains(answer, "ng refs/tags/bomb") {
			t.Errorf("%s: answer %q", name, answer)
		}
		gittest.Untouched(t, r)
		if err := gittest.Take(t, r, pack, small); !errors.Is(err, repository.ErrBadPack) {
			t.Errorf("%s, fetched: %v", name, err)
		}
		gittest.Untouched(t, r)
	}
}

// TestGitIsEndedWhenItTakesTooLong, and what it leaves goes. Not parallel: gittest.Script.
func TestGitIsEndedWhenItTakesTooLong(t *testing.T) {
	git := gittest.Script(t, `case "$1" in receive-pack|index-pack) mkdir -p objects/tmp_objdir-incoming-a/pack; sleep 3600;; *) exec git "$@";; esac`)
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Git: git, PackTime: 100 * time.Millisecond})
	must(t, err)
	h := serveFrom(t, store, githttp.Options{})
	r := h.repo("long")
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	if _, answer := h.push("long", w.Pack("main"), creates("refs/heads/main", id, "report-status")); !strings.Contains(answer, "ng refs/heads/main the push takes too long to check; push less at once") {
		t.Errorf("answer %q", answer)
	}
	gittest.Untouched(t, r)
	if err := gittest.Take(t, r, w.Pack("main"), id); !errors.Is(err, repository.ErrBadPack) || !errors.Is(err, repository.ErrTooLong) {
		t.Errorf("fetched: %v", err)
	}
}

// TestBodiesThatUnpackToMuchMore than was sent are refused, and unpacked no further.
func TestBodiesThatUnpackToMuchMore(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	r := h.repo("x")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := io.WriteString(z, gittest.Pkt(creates("refs/nostr/"+strings.Repeat("1", 64), strings.Repeat("7", 40), "report-status")))
	must(t, err)
	_, err = io.CopyN(z, zeros{}, 256<<20)
	must(t, errors.Join(err, z.Close()))
	t.Logf("%d bytes for %d", packed.Len(), 256<<20)
	status, answer := h.post("x", "git-receive-pack", &packed, "Content-Encoding", "gzip")
	if status != 200 || !strings.Contains(answer, "unpacks to more than 10 times its size") {
		t.Errorf("answer %d %q", status, answer)
	}
	if memory, disk := r.Store.Kept(); memory+disk != 0 {
		t.Errorf("%d bytes of memory and %d of disk are never given back", memory, disk)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestCommandsInMemoryAreCharged to the client that sends them, before they are kept.
func TestCommandsInMemoryAreCharged(t *testing.T) {
	t.Parallel()
	store, err := repository.NewStore(repository.Options{Root: t.TempDir(), MemoryBudget: 128 << 20})
	must(t, err)
	h := serveFrom(t, store, githttp.Options{})
	h.repo("x")
	var commands strings.Builder // 1.5 MiB, and no end of them
	for n := range 9000 {
		line := creates(fmt.Sprintf("refs/tags/%0100d", n), strings.Repeat("7", 40), "")
		commands.WriteString(strings.TrimSuffix(gittest.Pkt(strings.TrimSuffix(line, "\x00")), "0000"))
	}
	// An eighth of the budget is for requests, and half of that for one client: 8 MiB.
	status, answer := h.post("x", "git-receive-pack", strings.NewReader(commands.String()))
	if status != 429 {
		t.Errorf("%d bytes of commands: %d %q", commands.Len(), status, answer)
	}
	if memory, disk := store.Kept(); memory+disk != 0 {
		t.Errorf("%d bytes of memory and %d of disk are never given back", memory, disk)
	}
}

// TestAPushThatGrowsBeyondItsLimit: a pack that is small as it comes is completed by what is here.
func TestAPushThatGrowsBeyondItsLimit(t *testing.T) {
	h, r, w := begin(t, githttp.Options{MaxPushBytes: 1 << 20})
	large := gittest.Noise(3 << 20)
	w.Commit("a", large)
	gittest.Fill(t, r, w.Pack("main"))
	gittest.Do(t, r, func(r *repository.Locked) error {
		return r.SetRef(t.Context(), "refs/heads/main", w.Git("rev-parse", "HEAD"))
	})
	before, err := r.Bytes()
	must(t, err)
	w.Commit("a", large+"and more")
	if out := h.failing(w, "push", h.at("x"), "main"); !strings.Contains(out, "git cannot check the pack within the limit on its size") {
		t.Errorf("the terminal says\n%s", out)
	}
	if after, err := r.Bytes(); err != nil || after != before {
		t.Errorf("the repository grew from %d to %d bytes, %v", before, after, err)
	}
}

// TestPushesShareProcessesByClient: who has a push under way, or several, delays no other client.
func TestPushesShareProcessesByClient(t *testing.T) {
	folder := t.TempDir()
	goOn := filepath.Join(folder, "go")
	git := gittest.Script(t, fmt.Sprintf(`case "$1" in
receive-pack) touch %s/began.$$; while [ ! -e %s ]; do sleep 0.01; done;; esac
exec git "$@"`, folder, goOn))
	// A quarter of the processes is the worker's own; a client has one of the other six.
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Git: git, Processes: 8})
	must(t, err)
	h := serveFrom(t, store, githttp.Options{Patience: 10 * time.Millisecond})
	w := gittest.NewWork(t)
	id := w.Commit("a", "a")
	request := gittest.Pkt(creates("refs/heads/main", id, "report-status")) + string(w.Pack("main"))
	began := func() int {
		found, err := filepath.Glob(filepath.Join(folder, "began.*"))
		must(t, err)
		return len(found)
	}
	for _, identifier := range []string{"one", "two", "three"} {
		h.repo(identifier)
	}
	var pushes sync.WaitGroup
	defer pushes.Wait()
	defer func() { must(t, os.WriteFile(goOn, nil, 0o600)) }()
	push := func(identifier, client string) {
		if _, answer := h.post(identifier, "git-receive-pack", strings.NewReader(request), proto.HeaderClient, client); !strings.Contains(answer, "ok refs/heads/main") {
			t.Errorf("the push of %s: %q", client, answer)
		}
	}
	pushes.Go(func() { push("one", "192.0.2.1") })
	fixture.Await(t, "the first push runs", func() bool { return began() == 1 })
	if _, answer := h.post("two", "git-receive-pack", strings.NewReader(request), proto.HeaderClient, "192.0.2.1"); !strings.Contains(answer, "too many git requests") {
		t.Errorf("a second push of one client: %q", answer)
	}
	pull := gittest.Pkt(creates("refs/nostr/"+strings.Repeat("e", 64), id, "report-status")) + string(w.Pack("main"))
	if _, answer := h.post("two", "git-receive-pack", strings.NewReader(pull), proto.HeaderClient, "192.0.2.1"); !strings.Contains(answer, "too many git requests") {
		t.Errorf("a second push of one client, of a pull request: %q", answer)
	}
	pushes.Go(func() { push("three", "192.0.2.2") })
	fixture.Await(t, "another client's push runs", func() bool { return began() == 2 })
}
