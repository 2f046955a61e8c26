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
		pack, err := openPack(bufio.NewReader(bytes.NewReader(in)), func() {})
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

// TestPace: a server may think for long if it says something now and then; once it sends, every
// minute brings its bytes, or the request ends.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rate  int64
		from  trickle
		sends bool
		lasts time.Duration // until it is cut off; zero: never
	}{
		"nothing comes":            {1, trickle(time.Hour), false, 2 * time.Minute},
		"nothing comes of a pack":  {1, trickle(time.Hour), true, time.Minute},
		"it thinks":                {1024, trickle(110 * time.Second), false, 10 * time.Minute},
		"it sends too few bytes":   {1024, trickle(2 * time.Second), true, time.Minute},
		"it sends just enough":     {1024, trickle(900 * time.Millisecond), true, 0},
		"it says little, at least": {1, trickle(119 * time.Second), false, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, lasted := time.Now(), atomic.Int64{}
			p := Limits{MinRate: tc.rate, Silence: 2 * time.Minute, window: time.Minute}.pace(func() {
				lasted.CompareAndSwap(0, int64(time.Since(began)))
			})
			defer p.stop()
			p.from = tc.from
			if tc.sends {
				p.sends()
			}
			for b := make([]byte, 1000); lasted.Load() == 0 && time.Since(began) < 5*time.Hour; {
				p.Read(b)
			}
			if got := time.Duration(lasted.Load()); got != tc.lasts {
				t.Errorf("%s: cut off after %v, want %v", name, got, tc.lasts)
			}
		})
	}
}

// TestRetryAfter reads what servers send.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999999999999999": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:03:05 GMT": 0,
	} {
		if got := retryAfter(header, now); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}
