package githttp

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
)

func scratch(t *testing.T) func() (*os.File, error) {
	folder := t.TempDir()
	return func() (*os.File, error) { return os.CreateTemp(folder, "scratch") }
}

func TestBufferGivesBackWhatItWasGiven(t *testing.T) {
	t.Parallel()
	content := make([]byte, 5<<20)
	rand.Read(content)
	for name, test := range map[string]struct {
		room    int64
		scratch func() (*os.File, error)
	}{
		"with room":      {100 << 20, scratch(t)},
		"with some room": {1 << 20, scratch(t)},
		"without room":   {0, scratch(t)},
		"without a disk": {100 << 20, func() (*os.File, error) { return os.Open(filepath.Join(t.TempDir(), "none")) }},
		"on a full disk": {100 << 20, func() (*os.File, error) { return os.Open(os.DevNull) }}, // opened for reading
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := limit.NewFair(test.room, test.room)
			b := newBuffer(test.scratch, &room{disk: disk})
			go func() {
				_, err := io.CopyBuffer(struct{ io.Writer }{b}, struct{ io.Reader }{bytes.NewReader(content)}, make([]byte, chunk))
				if err == nil {
					err = io.EOF
				}
				b.end(err)
			}()
			got, err := io.ReadAll(b)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes came, %v", len(got), err)
			}
			b.close()
			if taken, _, _ := disk.Counts(0); taken != 0 {
				t.Errorf("%d are taken", taken)
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
	npub, _ := nip19.EncodePublicKey(owner)
	want := strings.ReplaceAll(`# HELP ngit_git_top_repos_bytes Bytes exchanged with git clients since the start, of the repositories with the most.
# TYPE ngit_git_top_repos_bytes gauge
ngit_git_top_repos_bytes{repo="NPUB/r1"} 110
ngit_git_top_repos_bytes{repo="NPUB/r4"} 40
`, "NPUB", npub)
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
