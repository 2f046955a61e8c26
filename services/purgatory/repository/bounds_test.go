package repository_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/gittest"
)

// deltaBomb is a pack of some kilobytes with an object of so many bytes: a blob of zeros, and a
// delta that copies it again and again.
func deltaBomb(size int) (pack []byte, id string) {
	const base = 8 << 20
	var b bytes.Buffer
	b.WriteString("PACK")
	binary.Write(&b, binary.BigEndian, []uint32{2, 2})
	entry := func(kind byte, before, content []byte) {
		n := uint64(len(content))
		b.Write(binary.AppendUvarint([]byte{0x80 | kind<<4 | byte(n&15)}, n>>4))
		b.Write(before)
		z := zlib.NewWriter(&b)
		z.Write(content)
		z.Close()
	}
	at := b.Len()
	entry(3, nil, make([]byte, base))
	delta := binary.AppendUvarint(binary.AppendUvarint(nil, base), uint64(size))
	for range size / base {
		delta = append(delta, 0x80|0x40, base>>16&0xff) // copy: the third byte of the size is what is there
	}
	distance := b.Len() - at
	var offset []byte // of git's own kind, the last seven bits last
	for offset = []byte{byte(distance & 127)}; distance > 127; {
		distance = distance>>7 - 1
		offset = append([]byte{0x80 | byte(distance&127)}, offset...)
	}
	entry(6, offset, delta)
	sum := sha1.Sum(b.Bytes())
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	for range size / base {
		h.Write(make([]byte, base))
	}
	return append(b.Bytes(), sum[:]...), fmt.Sprintf("%x", h.Sum(nil))
}

// TestABombTakesLittleMemory, when it comes and when it is asked for.
func TestABombTakesLittleMemory(t *testing.T) {
	t.Parallel()
	const size, most = 512 << 20, 400 << 20
	pack, id := deltaBomb(size)
	largest := func(who int) int64 {
		var used syscall.Rusage
		must(t, syscall.Getrusage(who, &used))
		return used.Maxrss << 10
	}
	r := gittest.Repo(t, gittest.Store(t), "bomb")
	err := gittest.Take(t, r, pack, id)
	limit, reached := repository.LimitReached(err)
	if !errors.Is(err, repository.ErrBadPack) || !reached || limit != "memory" {
		t.Errorf("a pack of %d bytes: %v", len(pack), err)
	}
	gittest.Untouched(t, r)
	t.Logf("a pack of %d bytes for %d; git took %d MiB at most", len(pack), size, largest(syscall.RUSAGE_CHILDREN)>>20)
	// A child is counted with the memory of this process until it has become another program.
	if git, own := largest(syscall.RUSAGE_CHILDREN), largest(syscall.RUSAGE_SELF); git > max(most, own) {
		t.Errorf("git took %d MiB, and this process %d MiB", git>>20, own>>20)
	}
	gittest.Fill(t, r, pack)
	c := r.UploadPack(false, "")
	c.Stdin, c.Stdout = strings.NewReader(gittest.Pkt("want "+id+"\n")+"0009done\n"), &bytes.Buffer{}
	err = c.Run(t.Context())
	if limit, reached := repository.LimitReached(err); !reached || limit != "memory" {
		t.Errorf("a fetch of it: %v", err)
	}
}

// TestProcessesShareOneBudget: as many run at once as there is memory for, for clients and for the
// worker.
func TestProcessesShareOneBudget(t *testing.T) {
	folder := t.TempDir()
	fake := gittest.Script(t, fmt.Sprintf(`case "$1" in
upload-pack) mkdir %[1]s/$$; ls %[1]s | grep -c '^[0-9]*$'; read line; rmdir %[1]s/$$;;
*) exec git "$@";; esac`, folder))
	// Clients have five eighths of it, one of them half of that: two processes of 256 MiB.
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: fake, MemoryBudget: 1700 << 20})
	must(t, err)
	r := gittest.Repo(t, s, "x")
	var running sync.WaitGroup
	for client := range 4 {
		for range 4 {
			running.Go(func() {
				var out bytes.Buffer
				c := r.UploadPack(false, "")
				c.Client, c.Stdin, c.Stdout = fmt.Sprint(client), strings.NewReader("go\n"), &out
				var n int
				if err := c.Run(t.Context()); err != nil {
					t.Error(err)
				} else if _, err := fmt.Sscan(out.String(), &n); err != nil || n > 4 {
					t.Errorf("%d processes at once, %v", n, err)
				}
			})
		}
	}
	running.Wait()
}

// TestSpoolsShareOneBudget of memory and disk.
func TestSpoolsShareOneBudget(t *testing.T) {
	t.Parallel()
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), MemoryBudget: 8 << 20, SpoolBytes: 4 << 20, SpoolShare: 2 << 20})
	must(t, err)
	spools := make([]*repository.Spool, 12)
	refused := 0
	for i := range spools {
		spools[i] = s.Spool(fmt.Sprint(i%4), nil)
		if _, err := spools[i].Write(make([]byte, 1<<20)); err != nil {
			refused++
		}
	}
	if _, disk := s.Kept(); disk > 5<<20 || refused < 6 {
		t.Errorf("%d bytes on disk, %d refused", disk, refused)
	}
	small := make([]*repository.Spool, 100)
	for i := range small {
		small[i] = s.Spool("small", nil)
		_, _ = small[i].Write(make([]byte, 60<<10))
	}
	if memory, _ := s.Kept(); memory > 1<<20 {
		t.Errorf("%d bytes in memory", memory)
	}
	for _, spool := range append(spools, small...) {
		spool.Close()
	}
	if memory, disk := s.Kept(); memory+disk != 0 {
		t.Errorf("%d bytes of memory and %d of disk are never given back", memory, disk)
	}
}

// TestARewoundSpool has what is written next, and gives back what it had of the disk beyond a step.
func TestARewoundSpool(t *testing.T) {
	t.Parallel()
	s, err := repository.NewStore(repository.Options{Root: t.TempDir()})
	must(t, err)
	spool := s.Spool("client", nil)
	defer spool.Close()
	for i, size := range []int{100 << 10, 90 << 10, 10, 3 << 20, 100} {
		written := bytes.Repeat([]byte{byte(i)}, size)
		_, err := spool.Write(written)
		must(t, err)
		if read, err := io.ReadAll(spool.Reader(0)); err != nil || !bytes.Equal(read, written) {
			t.Errorf("after %d rewinds %d bytes are read of %d: %v", i, len(read), size, err)
		}
		spool.Rewind()
		if _, disk := s.Kept(); disk > repository.SpoolStep {
			t.Errorf("after %d bytes %d are kept on disk", size, disk)
		}
	}
}

// TestOneClientLeavesRoomForOthers on the disk for what arrives.
func TestOneClientLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), MemoryBudget: 8 << 20, SpoolBytes: 4 << 20, SpoolShare: 2 << 20})
	must(t, err)
	greedy, other := s.Spool("greedy", nil), s.Spool("other", nil)
	defer greedy.Close()
	defer other.Close()
	for err == nil {
		_, err = greedy.Write(make([]byte, 256<<10))
	}
	if greedy.Size() > 3<<20 || greedy.Size() < 2<<20 {
		t.Errorf("one client has %d bytes, and may have 2 MiB and one step", greedy.Size())
	}
	if _, err := other.Write(make([]byte, 1<<20)); err != nil {
		t.Errorf("another has no room: %v", err)
	}
}

// TestAWriterIsAloneThoughItIsFrozen: a process that stands still hears of no end of its lease, and
// its git goes on. No other writer begins before that process has ended, with all that it started. Git
// ends with its parent, though that is killed, and creates no reference afterwards; what git started
// itself is waited for. The locks that they leave are in no one's way. The frozen process is this
// test again.
func TestAWriterIsAloneThoughItIsFrozen(t *testing.T) {
	if root := os.Getenv("TENDRIL_TEST_ROOT"); root != "" {
		s, err := repository.NewStore(repository.Options{Root: root, Git: os.Getenv("TENDRIL_TEST_GIT")})
		must(t, err)
		gittest.Do(t, gittest.Repo(t, s, "x"), func(r *repository.Locked) error {
			c := r.ReceivePack(1<<20, false)
			c.Stdin = strings.NewReader("0000")
			return c.Run(t.Context())
		})
		return
	}
	folder, root := t.TempDir(), filepath.Join(t.TempDir(), "git")
	w := gittest.NewWork(t)
	id := w.Commit("a", "1")
	fake := gittest.Script(t, fmt.Sprintf(`await() { while [ -d %[1]s ] && [ ! -e %[1]s/$1 ]; do sleep 0.01; done; }
case "$1" in
receive-pack) mkdir -p refs/heads; touch HEAD.lock refs/heads/main.lock; await end & echo $$ >%[1]s/began
	await go; exec git update-ref refs/heads/late %[2]s;;
*) exec git "$@";; esac`, folder, id))
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAWriterIsAloneThoughItIsFrozen$")
	parent.Env = append(os.Environ(), "TENDRIL_TEST_ROOT="+root, "TENDRIL_TEST_GIT="+fake)
	must(t, parent.Start())
	var pid []byte
	fixture.Await(t, "receive-pack runs", func() bool {
		pid, _ = os.ReadFile(filepath.Join(folder, "began"))
		return bytes.HasSuffix(pid, []byte("\n"))
	})
	must(t, parent.Process.Signal(syscall.SIGSTOP))
	s, err := repository.NewStore(repository.Options{Root: root})
	must(t, err)
	r, err := s.Repo(nostr.RepoRef{PubKey: gittest.Owner, Identifier: "x"})
	must(t, err)
	gittest.Fill(t, r, w.Pack("main"))
	waits := func(while string) {
		t.Helper()
		if _, err := r.Lock(t.Context()); !errors.Is(err, repository.ErrElsewhere) {
			t.Fatalf("the next writer begins while %s: %v", while, err)
		}
	}
	waits("the one before is frozen, and its git goes on")
	must(t, parent.Process.Kill())
	_ = parent.Wait()
	must(t, os.WriteFile(filepath.Join(folder, "go"), nil, 0o600))
	fixture.Await(t, "git has ended", func() bool {
		status, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
		return err != nil || strings.Contains(string(status), ") Z ")
	})
	if refs, err := r.Refs(); err != nil || len(refs.ByName) > 0 {
		t.Errorf("after its parent was killed, git made %v, %v", refs.ByName, err)
	}
	waits("something lives that git started")
	must(t, os.WriteFile(filepath.Join(folder, "end"), nil, 0o600))
	fixture.Await(t, "the next writer begins", func() bool {
		locked, err := r.Lock(t.Context())
		if err == nil {
			must(t, locked.Sweep(), locked.SetRef(t.Context(), "refs/heads/main", id))
			locked.Done()
		}
		return err == nil
	})
}

// TestAWriterThatWaitsEndsWithItsLease, also while it waits for a process.
func TestAWriterThatWaitsEndsWithItsLease(t *testing.T) {
	began := filepath.Join(t.TempDir(), "began")
	fake := gittest.Script(t, fmt.Sprintf(`case "$1" in upload-pack) touch %s; exec sleep 3600;; *) exec git "$@";; esac`, began))
	lease, end := context.WithCancel(t.Context())
	defer end()
	enter := func(string) (repository.Tenure, error) {
		return repository.Tenure{Lease: lease, Open: lease, Leave: func() {}}, nil
	}
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: fake, Processes: 2, Enter: enter}) // one for clients
	must(t, err)
	r := gittest.Repo(t, s, "x")
	ctx, cancel := context.WithCancel(t.Context())
	var fetch sync.WaitGroup
	fetch.Go(func() { _ = r.UploadPack(false, "").Run(ctx) })
	defer fetch.Wait()
	defer cancel()
	fixture.Await(t, "a fetch runs", func() bool { _, err := os.Stat(began); return err == nil })
	push := gittest.Lock(t, r).ReceivePack(1<<20, false)
	push.Stdin = strings.NewReader("0000")
	ended := make(chan error, 1)
	go func() { ended <- push.Run(t.Context()) }()
	end()
	if err := <-ended; !errors.Is(err, repository.ErrLease) {
		t.Errorf("a push whose lease has ended: %v", err)
	}
}

// TestTheWholeGroupIsAskedToEnd, and what git has started may tidy up.
func TestTheWholeGroupIsAskedToEnd(t *testing.T) {
	folder := t.TempDir()
	began, tidied := filepath.Join(folder, "began"), filepath.Join(folder, "tidied")
	fake := gittest.Script(t, fmt.Sprintf(`case "$1" in
upload-pack) sh -c 'trap "touch %s; exit" TERM; touch %s; while :; do sleep 0.01; done' & trap 'wait $!; exit 1' TERM; wait;;
*) exec git "$@";; esac`, tidied, began))
	s, err := repository.NewStore(repository.Options{Root: t.TempDir(), Git: fake})
	must(t, err)
	r := gittest.Repo(t, s, "x")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.UploadPack(false, "").Run(ctx) }()
	fixture.Await(t, "git runs", func() bool { _, err := os.Stat(began); return err == nil })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := os.Stat(tidied); err != nil {
		t.Error("what git started was not asked to end")
	}
}
