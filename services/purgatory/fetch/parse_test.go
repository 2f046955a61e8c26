package fetch

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// SetWindow shortens the windows in which a server must send.
func (l *Limits) SetWindow(window time.Duration) { l.window = window }

func FuzzReadAdvertisement(f *testing.F) {
	id := strings.Repeat("a", 40)
	f.Add([]byte("001e# service=git-upload-pack\n00000000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000003f" + id + " refs/heads/x\x00side-band-64k\n0000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000000eversion 1\n003f" + id + " refs/heads/x\x00side-band-64k\n0000"))
	f.Add([]byte("000eversion 2\n0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := readAdvertisement(bytes.NewReader(in), []string{id})
		if err != nil && len(err.Error()) > 1000 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
		if len(s.advertised) > 1 {
			t.Fatal("remembers what was not asked for")
		}
	})
}

func FuzzOpenPack(f *testing.F) {
	f.Add([]byte("0008NAK\n000a\x01PACK.0000"))
	f.Add([]byte("0008NAK\nPACK"))
	f.Add([]byte("0038ACK " + strings.Repeat("a", 40) + " common\n0008NAK\n0009\x02hey\n"))
	f.Add([]byte("0010ERR go away\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		pack, err := openPack(bufio.NewReader(bytes.NewReader(in)))
		if err == nil {
			var n int64
			if n, err = io.Copy(io.Discard, pack); n > int64(len(in)) {
				t.Fatalf("%d bytes became %d", len(in), n)
			}
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}

// trickle is a reader that gives a byte after each pause.
type trickle time.Duration

func (pause trickle) Read(b []byte) (int, error) {
	time.Sleep(time.Duration(pause))
	return min(1000, len(b)), nil
}

// TestPace: an answer may begin late, but then every window brings its bytes, or the request ends.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rate  int64
		from  trickle
		lasts time.Duration // until it is cut off; zero: never
	}{
		"nothing comes":       {1, trickle(time.Hour), time.Minute},
		"it thinks long":      {1, trickle(59 * time.Second), 89 * time.Second},
		"too few bytes":       {1000, trickle(2 * time.Second), time.Minute},
		"just enough of them": {1000, trickle(900 * time.Millisecond), 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, lasted := time.Now(), atomic.Int64{}
			p := Limits{MinRate: tc.rate, window: 30 * time.Second}.pace(func() { lasted.Store(int64(time.Since(began))) })
			p.from = tc.from
			for b := make([]byte, 1000); lasted.Load() == 0 && time.Since(began) < 5*time.Hour; {
				p.Read(b)
			}
			p.timer.Stop()
			if got := time.Duration(lasted.Load()); got != tc.lasts {
				t.Errorf("%s: cut off after %v, want %v", name, got, tc.lasts)
			}
		})
	}
}
