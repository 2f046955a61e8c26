package githttp_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repository/gittest"
)

// sendPack pushes a pack to a new tag, and returns what the client is told.
func (h *house) sendPack(identifier, id string, pack []byte) string {
	h.Helper()
	body := pkt(githttp.ZeroID+" "+id+" refs/tags/bomb\x00report-status") + string(pack)
	status, _, answer := h.send("POST", h.at(identifier)+"/git-receive-pack", map[string]string{"Content-Type": receiveType}, strings.NewReader(body))
	if status != 200 {
		h.Errorf("answered by %d", status)
	}
	return answer
}

// untouched checks that nothing is in a repository, and nothing in quarantine.
func untouched(t *testing.T, r *repository.Repo) {
	t.Helper()
	if data, err := r.HasObjects(); err != nil || data {
		t.Errorf("there is data in the repository: %v", err)
	}
	for _, folder := range []string{filepath.Join(r.Path(), "objects"), filepath.Join(r.Path(), "..", "..", ".new")} {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if !slices.Contains([]string{"info", "pack"}, entry.Name()) {
				t.Errorf("left behind: %s", entry.Name())
			}
		}
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
			if answer := h.sendPack("bomb", blobID(small), pack); !strings.Contains(answer, "ng refs/tags/bomb") {
				t.Errorf("answer %q", answer)
			}
			untouched(t, r)
			if err := gittest.Take(t, r, pack, blobID(small)); !errors.Is(err, repository.ErrBadPack) {
				t.Errorf("fetched: %v", err)
			}
			untouched(t, r)
			if h.counted("ngit_git_operations_total", "receive_pack", "refused", "error") != 1 {
				t.Error("it was not counted")
			}
		})
	}
}

// chain is a pack of a blob and of deltas, each of which stands on the one before it and is a byte
// longer, and the id of the last.
func chain(size, deltas int) (pack []byte, last string) {
	content := make([]byte, size)
	entries := [][]byte{blob(content)}
	for range deltas {
		length := uint64(len(content))
		delta := append(deltaHeader(length, length+1), 0xf0, byte(length), byte(length>>8), byte(length>>16), 1, 'x') // copy all, add one
		entries = append(entries, offsetDelta(len(entries[len(entries)-1]), delta))
		content = append(content, 'x')
	}
	return packOf(entries...), blobID(content)
}

func TestChainIsWhatGitReads(t *testing.T) {
	t.Parallel()
	h := serve(t, githttp.Options{})
	h.repo("chain")
	pack, last := chain(1000, 100)
	if answer := h.sendPack("chain", last, pack); !strings.Contains(answer, "ok refs/tags/bomb") {
		t.Errorf("answer %q", answer)
	}
}

// TestGitIsEndedWhenItTakesTooLong: with a pack of 64 KiB that it needs to make 3 GB of, within all
// bounds.
func TestGitIsEndedWhenItTakesTooLong(t *testing.T) {
	t.Parallel()
	store, err := repository.NewStore(repository.Options{Root: filepath.Join(t.TempDir(), "git"), Processes: 5, PackTime: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, githttp.Options{})
	h.authority.store = store
	r := h.repo("long")
	pack, last := chain(3<<20, 1000)
	for range 2 { // the second finds the only slot free
		// Git that had to be killed leaves this.
		if err := os.MkdirAll(filepath.Join(r.Path(), "objects", "tmp_objdir-incoming-abc", "pack"), 0o755); err != nil {
			t.Fatal(err)
		}
		if answer := h.sendPack("long", last, pack); !strings.Contains(answer, "ng refs/tags/bomb the push takes too long to check; push less at once") {
			t.Errorf("answer %q", answer)
		}
		untouched(t, r)
	}
	if err := gittest.Take(t, r, pack, last); err == nil || !strings.Contains(err.Error(), "git took longer than it may") {
		t.Errorf("fetched: %v", err)
	}
	untouched(t, r)
}
