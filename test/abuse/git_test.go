package abuse

import (
	"bufio"
	"bytes"
	"compress/flate"
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// stranger returns one of many addresses, each in a network of its own.
func stranger(i int) string { return fmt.Sprintf("198.51.%d.%d", 100+i/250, 1+i%250) }

// open begins an HTTP request to a repository on a socket of its own: the head, and as much of the
// body as is given. The socket stays open until the test ends.
func open(t *testing.T, p *world.Tendril, from, path string, length int, body string) net.Conn {
	t.Helper()
	host := strings.TrimPrefix(p.URL, "http://")
	c, err := net.Dial("tcp", host)
	fixture.Must(t, err)
	t.Cleanup(func() { c.Close() })
	service := path[strings.LastIndex(path, "/")+1:]
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nX-Forwarded-For: %s\r\nContent-Type: application/x-%s-request\r\nContent-Length: %d\r\n\r\n%s",
		path, host, from, service, length, body)
	return c
}

// TestSlowRequestBodies: sockets that send the first line of a request and then nothing do not keep
// others from git (issue: 30 of them stopped it).
func TestSlowRequestBodies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		sockets   int
		addresses int
	}{{"30 of one address", 30, 1}, {"300 of one address", 300, 1}, {"300 of 300 addresses", 300, 300}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, nil)
			n := moveIn(t, p)
			at := "/" + n.who.Npub + "/" + home + ".git/"
			for i := range c.sockets {
				service := []string{"git-upload-pack", "git-receive-pack"}[i%2]
				open(t, p, stranger(i%c.addresses), at+service, 100_000, "0032want "+strings.Repeat("1", 40)+"\n")
			}
			n.unhurt(3)
		})
	}
}

// TestSlowReaders: clients that ask for a clone and do not read it do not keep others from git.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		addresses int
	}{{"60 of one address", 1}, {"60 of 60 addresses", 60}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := start(t, nil)
			n := moveIn(t, p)
			n.work.AddNoise(24 << 20) // more than the sockets of a connection hold
			n.day()
			tip := n.work.Refs()["refs/heads/main"]
			request := fmt.Sprintf("0032want %s\n00000009done\n", tip)
			for i := range 60 {
				open(t, p, stranger(i%c.addresses), "/"+n.who.Npub+"/"+home+".git/git-upload-pack", len(request), request)
			}
			n.unhurt(3)
		})
	}
}

// bomb makes a pack of one tree of so many MiB of zeros. Each MiB after the first is deflated to the
// same bytes, so that making the pack takes no time.
func bomb(mebibytes int) []byte {
	const mebibyte = 1 << 20
	var deflated bytes.Buffer
	deflater, _ := flate.NewWriter(&deflated, flate.DefaultCompression) // a legal level
	next := func() []byte {
		deflated.Reset()
		deflater.Write(make([]byte, mebibyte))
		deflater.Flush()
		return bytes.Clone(deflated.Bytes())
	}
	const tree = 2
	size := uint64(mebibytes) * mebibyte
	pack := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01")
	first, rest := tree<<4|byte(size&15), size>>4
	for ; rest > 0; rest >>= 7 {
		pack = append(pack, first|0x80)
		first = byte(rest & 0x7f)
	}
	pack = append(pack, first, 0x78, 0x9c) // the header of zlib
	pack = append(pack, next()...)
	pack = append(pack, bytes.Repeat(next(), mebibytes-1)...)
	pack = append(pack, 0x03, 0x00)                                      // the last block, which is empty
	pack = binary.BigEndian.AppendUint32(pack, uint32(size%65521)<<16|1) // Adler-32 of zeros
	sum := sha1.Sum(pack)
	return append(pack, sum[:]...)
}

// push sends a pack as a push of one new reference, by HTTP alone, and gives what is answered.
func push(p *world.Tendril, from, path, ref, id string, pack []byte) (status int, answer string, err error) {
	line := fmt.Sprintf("%040d %s %s\x00 report-status", 0, id, ref)
	body := append(fmt.Appendf(nil, "%04x%s0000", len(line)+4, line), pack...)
	request, err := http.NewRequest(http.MethodPost, p.URL+path+"/git-receive-pack", bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("X-Forwarded-For", from)
	request.Header.Set("Content-Type", "application/x-git-receive-pack-request")
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(bufio.NewReader(resp.Body))
	return resp.StatusCode, string(text), err
}

// TestBombs: packs that are small on the wire and gigabytes when they are unpacked are refused, and
// leave nothing behind.
func TestBombs(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	n := moveIn(t, p)
	path := "/" + n.who.Npub + "/" + home + ".git"
	pack := bomb(3 << 10)
	t.Logf("a bomb of %d bytes for 3 GiB", len(pack))
	var refused atomic.Int64
	done := make(chan struct{})
	for i := range 20 {
		go func() {
			defer func() { done <- struct{}{} }()
			status, answer, err := push(p, stranger(i), path, "refs/nostr/"+randomHex(32), randomHex(20), pack)
			if err == nil && (status != http.StatusOK || strings.Contains(answer, "ng refs/nostr/")) {
				refused.Add(1)
			} else {
				t.Logf("a bomb is answered %d %q %v", status, answer, err)
			}
		}()
	}
	n.unhurt(3)
	for range 20 {
		<-done
	}
	if refused.Load() != 20 {
		t.Errorf("%d of 20 bombs are refused", refused.Load())
	}
	n.unhurt(1)
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// TestPushesWithoutEvents: what strangers push to refs/nostr/ is bounded by address, is named no
// more when no event has come in time, and is off the disk when it has rested for a day.
func TestPushesWithoutEvents(t *testing.T) {
	t.Parallel()
	// Nothing of what is pushed goes before all of it has come, however slow that is.
	p := start(t, map[string]string{"NGIT_PURGATORY_HOLD": "1h", "NGIT_DAILY_ADDRESS_GIT_BYTES": "32MiB"})
	n := moveIn(t, p)
	git := filepath.Join(p.Dir, "data", "git")
	before := world.Disk(t, git)
	refused := 0
	work := world.NewWorkTree(t)
	base := work.Refs()["refs/heads/main"]
	const pushes = 24
	for i := range pushes {
		work.Git("reset", "-q", "--hard", base) // no push brings what another was refused
		work.AddNoise(4 << 20)
		work.Commit(fmt.Sprintf("rubbish %d", i))
		out, err := work.TryGit("-c", "http.extraHeader=X-Forwarded-For: "+stranger(i%2), "push", n.url(), "+HEAD:refs/nostr/"+randomHex(32))
		if err != nil {
			refused++
			if refused == 1 {
				t.Logf("the first refusal:\n%s", out)
			}
		}
	}
	after := world.Disk(t, git)
	t.Logf("%d of %d pushes of rubbish refused; on disk before %d, after %d", refused, pushes, before, after)
	if refused == 0 {
		t.Error("two strangers may push as much as they like")
	}
	n.unhurt(2)
	fixture.Must(t, p.Stop())
	p.Change(map[string]string{"NGIT_PURGATORY_HOLD": "45s"})
	p.Restart()
	fixture.Await(t, "the rubbish is named no more", func() bool {
		return world.Git(t, filepath.Join(git, n.who.Npub, home+".git"), "for-each-ref", "refs/nostr") == ""
	})
	repository := filepath.Join(git, n.who.Npub, home+".git")
	world.Git(t, repository, "fsck", "--full", "--strict")
	age(t, repository, 48*time.Hour)
	n.unhurt(1) // after a push housekeeping looks whether it is due
	fixture.Await(t, "the rubbish is off the disk", func() bool { return world.Disk(t, git) < before+1<<20 })
	world.Git(t, repository, "fsck", "--full", "--strict")
	n.unhurt(1)
}

// age makes the files of a repository look as if nothing had happened there for a while.
func age(t *testing.T, repository string, by time.Duration) {
	t.Helper()
	then := time.Now().Add(-by)
	files, err := filepath.Glob(filepath.Join(repository, "objects", "pack", "*"))
	fixture.Must(t, err)
	for _, file := range append(files, filepath.Join(repository, "config"), filepath.Join(repository, "last-gc")) {
		if err := os.Chtimes(file, then, then); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// TestCopiesOfAPopularRepository: a hundred announcements that name the maintainer of a repository
// are served from the same objects.
func TestCopiesOfAPopularRepository(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	n := moveIn(t, p)
	n.work.AddNoise(8 << 20)
	n.day()
	git := filepath.Join(p.Dir, "data", "git")
	before := world.Disk(t, git)
	const copies = 100
	for i := range copies {
		if ok, message := world.DialFrom(t, p.Relay(), stranger(i)).Submit(fixture.NewPerson().Announce(home, n.who.PubKey)); !ok {
			t.Fatalf("an announcement is refused: %s", message)
		}
	}
	n.unhurt(1)
	// The owner lists none of them, so none speaks for the owner, and none gets the owner's data.
	if served := p.Count(nostr.Filter{Kinds: []int{30617}, Tags: nostr.TagMap{"d": {home}}}); served != 1 {
		t.Errorf("%d announcements are served, want the owner's alone", served)
	}
	after := world.Disk(t, git)
	t.Logf("on disk with one repository %d bytes, with %d copies %d: %.3f times", before, copies, after, float64(after)/float64(before))
	if float64(after) > 1.2*float64(before) {
		t.Errorf("%d copies of a repository need %.2f times its disk", copies, float64(after)/float64(before))
	}
}
