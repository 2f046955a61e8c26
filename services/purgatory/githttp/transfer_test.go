package githttp

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/test/fixture"
)

func TestBufferGivesBackWhatItWasGiven(t *testing.T) {
	t.Parallel()
	content := make([]byte, 5<<20)
	rand.Read(content)
	for name, test := range map[string]struct {
		room   int64
		noDisk bool
	}{
		"with room":      {room: 100 << 20},
		"with some room": {room: 1 << 20},
		"without room":   {},
		"without a disk": {room: 100 << 20, noDisk: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := repository.NewStore(repository.Options{Root: t.TempDir(), SpoolBytes: 1 + test.room, SpoolShare: 1 + test.room})
			if err != nil {
				t.Fatal(err)
			}
			if test.noDisk {
				os.RemoveAll(store.Root)
			}
			spool := store.Spool("", nil)
			b := &buffer{changed: sync.NewCond(new(sync.Mutex)), spool: spool}
			go func() {
				_, err := io.Copy(struct{ io.Writer }{b}, struct{ io.Reader }{bytes.NewReader(content)})
				b.end(cmp.Or(err, io.EOF))
			}()
			got, err := io.ReadAll(b)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes came, %v", len(got), err)
			}
			spool.Close()
			if memory, disk := store.Kept(); memory+disk != 0 {
				t.Errorf("%d bytes of memory and %d of disk are taken", memory, disk)
			}
		})
	}
}

// TestBufferWithoutAnyRoom: where neither memory nor disk takes the first byte, no reader can make
// room, and the answer ends. Where either does, all comes.
func TestBufferWithoutAnyRoom(t *testing.T) {
	t.Parallel()
	content := make([]byte, 3<<20)
	rand.Read(content)
	for name, test := range map[string]struct {
		memory, disk bool // that there is
		want         error
	}{
		"no memory": {disk: true},
		"no disk":   {memory: true},
		"neither":   {want: limit.ErrShare},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// An eighth of the memory is for requests, and half of that for one client.
			store, err := repository.NewStore(repository.Options{Root: t.TempDir(), MemoryBudget: 16 << 20, SpoolBytes: 1})
			if err != nil {
				t.Fatal(err)
			}
			memory, disk := store.RequestMemory(""), store.Spool("", nil)
			defer memory.Done()
			defer disk.Close()
			if !test.disk {
				_, err = disk.Write(make([]byte, repository.SpoolStep))
			}
			if !test.memory {
				err = cmp.Or(err, memory.Take(1<<20))
			}
			if err != nil {
				t.Fatal(err)
			}
			spool := store.Spool("", nil)
			defer spool.Close()
			b := &buffer{changed: sync.NewCond(new(sync.Mutex)), spool: spool}
			go func() {
				_, err := io.Copy(struct{ io.Writer }{b}, struct{ io.Reader }{bytes.NewReader(content)})
				b.end(cmp.Or(err, io.EOF))
			}()
			ended := make(chan error, 1)
			go func() {
				got, err := io.ReadAll(b)
				if err == nil && !bytes.Equal(got, content) {
					err = fmt.Errorf("%d bytes came", len(got))
				}
				ended <- err
			}()
			if err := fixture.Receive(t, "the end of the answer", ended); !errors.Is(err, test.want) {
				t.Errorf("it ends with %v, want %v", err, test.want)
			}
		})
	}
}

func TestTrafficNamesTheTop(t *testing.T) {
	t.Parallel()
	owner := strings.Repeat("1", 64)
	ref := func(i int) nostr.RepoRef { return nostr.RepoRef{PubKey: owner, Identifier: fmt.Sprintf("r%d", i)} }
	top := NewMetrics(prometheus.NewRegistry(), 2).traffic
	for i := range 5 {
		top.add(ref(i), i*10)
	}
	top.add(ref(1), 100)
	want := fmt.Sprintf(`# HELP ngit_git_top_repos_bytes Bytes exchanged with git clients since the start, of the repositories with the most.
# TYPE ngit_git_top_repos_bytes gauge
ngit_git_top_repos_bytes{repo="%[1]s/r1"} 110
ngit_git_top_repos_bytes{repo="%[1]s/r4"} 40
`, nostr.Npub(owner))
	if err := testutil.CollectAndCompare(top, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	for i := range maxCounted + 10 {
		top.add(ref(i), 1)
	}
	if n := len(top.bytes); n > maxCounted || top.most()[0] != ref(1) {
		t.Errorf("%d repositories are counted, the first is %v", n, top.most()[0])
	}
}
