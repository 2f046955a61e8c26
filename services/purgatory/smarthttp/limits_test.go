package smarthttp

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/purgatory/repository"
)

// TestPace: who keeps the lowest rate is never cut off, however long it takes, and who does not is,
// soon.
func TestPace(t *testing.T) {
	t.Parallel()
	const kib = 1 << 10
	for _, test := range []struct {
		name    string
		bytes   int           // at a time
		pause   time.Duration // before each
		cut     time.Duration // after, about; 0: not within six hours
		writing bool
	}{
		{"a phone that takes 500 MB at 50 KiB/s", 32 * kib, 640 * time.Millisecond, 0, true},
		{"a phone that is out of reach for 29 s now and then", 40 * kib, 29 * time.Second, 0, false},
		{"1 byte a second", 1, time.Second, 30 * time.Second, false},
		{"1 byte a second, taken", 1, time.Second, 30 * time.Second, true},
		{"half the lowest rate", 512, time.Second, time.Minute, false},
		{"nothing", 0, time.Hour, 30 * time.Second, false},
		{"nothing of what is sent", 32 * kib, time.Hour, 62 * time.Second, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				p := Options{MinRate: kib, Stall: 30 * time.Second, TransferTime: 6 * time.Hour}.pace()
				sending := 0
				if test.writing {
					sending = test.bytes
				}
				var err error
				for err == nil && time.Since(began) < 5*time.Hour {
					deadline := p.wait(sending)
					if left := time.Until(deadline); left < test.pause {
						time.Sleep(left)
						err = p.moved(0, fmt.Errorf("read: %w", os.ErrDeadlineExceeded))
						continue
					}
					time.Sleep(test.pause)
					err = p.moved(test.bytes, nil)
				}
				took := time.Since(began)
				if test.cut == 0 && err != nil || test.cut > 0 && (!errors.Is(err, errSlow) || took < test.cut-2*time.Second || took > test.cut+2*time.Second) {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

func TestPaceEndsWithTheTransfer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := Options{MinRate: 1, Stall: time.Hour, TransferTime: time.Minute}.pace()
		time.Sleep(50 * time.Second)
		if left := time.Until(p.wait(0)); left != 10*time.Second {
			t.Errorf("%v are left", left)
		}
	})
}

func TestRoomIsLeftForTheNext(t *testing.T) {
	t.Parallel()
	r := newRoom(1000)
	for i, want := range []int{500, 250, 125} {
		client, n := fmt.Sprint("client", i), 0
		for ; r.take(client, 1) == nil; n++ {
		}
		if n < want-1 || n > want+1 {
			t.Errorf("client %d has %d, want %d", i, n, want)
		}
		if err := r.take(client, 1); !errors.Is(err, repository.ErrShare) {
			t.Error(err)
		}
	}
	h := &holding{room: r}
	for h.grow(1) == nil {
	}
	if err := h.grow(1); !errors.Is(err, repository.ErrBusy) || r.free != 0 {
		t.Errorf("%v, %d are free", err, r.free)
	}
	h.end()
	h.end()
	for i, n := range []int64{500, 250, 125} {
		r.give(fmt.Sprint("client", i), min(n, r.has[fmt.Sprint("client", i)]))
		r.give(fmt.Sprint("client", i), r.has[fmt.Sprint("client", i)])
	}
	if r.free != 1000 || len(r.has) != 0 {
		t.Errorf("%d are free, %v", r.free, r.has)
	}
}

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
			r := newRoom(test.room)
			b := newBuffer(test.scratch, &holding{room: r})
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
			if r.free != test.room {
				t.Errorf("%d of %d are free", r.free, test.room)
			}
		})
	}
}

// TestBufferLetsGitEnd though nobody reads, as long as there is room, and then makes it wait.
func TestBufferLetsGitEnd(t *testing.T) {
	t.Parallel()
	room := newRoom(2 << 20)
	b := newBuffer(scratch(t), &holding{room: room})
	if n, err := b.Write(make([]byte, 2<<20)); n != 2<<20 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	waits := make(chan error)
	go func() {
		_, err := b.Write(make([]byte, 2<<20))
		waits <- err
	}()
	b.close()
	if err := <-waits; !errors.Is(err, errGone) || room.free != 2<<20 {
		t.Errorf("%v, %d are free", err, room.free)
	}
}

// TestGitDoesNotWaitForEver for a client that takes little, where there is no room.
func TestGitDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBuffer(scratch(t), &holding{room: newRoom(0)})
		written := make(chan error, 1)
		began := time.Now()
		go func() {
			_, err := b.Write(make([]byte, 2<<20))
			b.end(err)
			written <- err
		}()
		read := 0
		for part := make([]byte, 1<<10); ; {
			time.Sleep(time.Second)
			n, err := b.Read(part)
			if read += n; err != nil {
				if !errors.Is(err, errSlow) {
					t.Error(err)
				}
				break
			}
		}
		if err := <-written; !errors.Is(err, errSlow) || read < answerMemory || time.Since(began) < gitWaits {
			t.Errorf("%v after %d bytes and %v", err, read, time.Since(began))
		}
		b.close()
	})
}
