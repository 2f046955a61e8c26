package fetch

import (
	"bufio"
	"bytes"
	"io"
	"strings"
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

// slowly is a reader that gives a piece after each pause.
type slowly struct {
	first, every time.Duration
	piece        int
}

func (s *slowly) Read(b []byte) (int, error) {
	time.Sleep(s.first)
	s.first = s.every
	return min(s.piece, len(b)), nil
}

// TestPace: an answer may begin late, but then every window brings its bytes, or the request ends.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rate  int64
		from  slowly
		lasts time.Duration // until it is cut off; zero: never
	}{
		"nothing comes":                 {1000, slowly{time.Hour, time.Hour, 1}, time.Minute},
		"it thinks, then sends":         {1000, slowly{59 * time.Second, time.Second, 30_000}, 0},
		"a byte a second":               {1000, slowly{time.Second, time.Second, 1}, time.Minute},
		"just enough":                   {1000, slowly{time.Second, time.Second, 1100}, 0},
		"in large pieces":               {1000, slowly{time.Second, 29 * time.Second, 60_000}, 0},
		"one large piece, then nothing": {1000, slowly{time.Second, time.Hour, 1 << 20}, 31 * time.Second},
		"no lowest rate":                {0, slowly{time.Hour, time.Hour, 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, cut := time.Now(), make(chan time.Time, 10_000)
				p := Limits{MinRate: tc.rate, window: 30 * time.Second}.pace(func() { cut <- time.Now() })
				p.from = &tc.from
				done := make(chan struct{})
				go func() {
					for b := make([]byte, 1<<20); time.Since(began) < 5*time.Hour; {
						p.Read(b)
					}
					p.timer.Stop()
					close(done)
				}()
				var lasted time.Duration
				select {
				case at := <-cut:
					lasted = at.Sub(began)
				case <-time.After(4 * time.Hour):
				}
				if lasted != tc.lasts {
					t.Errorf("cut off after %v, want %v", lasted, tc.lasts)
				}
				<-done
			})
		})
	}
}
