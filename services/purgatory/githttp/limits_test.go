package githttp

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"tendril.dev/lib/limit"
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
				for rest := content; len(rest) > 0; {
					n, err := b.Write(rest[:min(len(rest), 32<<10)])
					if err != nil {
						t.Error(err)
						break
					}
					rest = rest[n:]
				}
				b.end(io.EOF)
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

// TestBufferLetsGitEnd though nobody reads, as long as there is room, and then makes it wait.
func TestBufferLetsGitEnd(t *testing.T) {
	t.Parallel()
	disk := limit.NewFair(2<<20, 2<<20)
	b := newBuffer(scratch(t), &room{disk: disk})
	if n, err := b.Write(make([]byte, 2<<20)); n != 2<<20 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	waits := make(chan error)
	go func() {
		_, err := b.Write(make([]byte, 2<<20))
		waits <- err
	}()
	b.close()
	err := <-waits
	if taken, _, _ := disk.Counts(0); !errors.Is(err, errGone) || taken != 0 {
		t.Errorf("%v, %d are taken", err, taken)
	}
}
