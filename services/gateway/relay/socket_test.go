package relay

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// network is a connection that notes each system call.
type network struct {
	net.Conn
	calls []string
	err   error
}

func (n *network) SetWriteDeadline(time.Time) error { return nil }

func (n *network) Write(p []byte) (int, error) {
	if n.err != nil {
		return 0, n.err
	}
	n.calls = append(n.calls, string(p))
	return len(p), nil
}

// TestSocketHoldsBack: what is written while a socket is held goes out in order and with few calls.
func TestSocketHoldsBack(t *testing.T) {
	t.Parallel()
	n := &network{}
	s := &socket{Conn: n, patience: time.Hour}
	large := strings.Repeat("x", 1<<20)
	want := ""
	write := func(what ...string) {
		for _, p := range what {
			if got, err := s.Write([]byte(p)); got != len(p) || err != nil {
				t.Fatal(got, err)
			}
			want += p
		}
	}
	s.hold()
	write("a", "bc", large, "d", "e")
	if len(n.calls) > 3 {
		t.Errorf("%d calls before it is released", len(n.calls))
	}
	if err := s.release(); err != nil {
		t.Fatal(err)
	}
	held := len(n.calls)
	if held > 4 {
		t.Errorf("%d calls", held)
	}
	write("f", "g")
	if got := strings.Join(n.calls, ""); got != want || len(n.calls) != held+2 {
		t.Errorf("%d bytes in %d calls, want %d in %d", len(got), len(n.calls), len(want), held+2)
	}
}

// TestSocketTellsOfErrors: what could not be passed on is an error of release.
func TestSocketTellsOfErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	s := &socket{Conn: &network{err: broken}, patience: time.Hour}
	s.hold()
	if _, err := s.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := s.release(); !errors.Is(err, broken) {
		t.Errorf("released: %v", err)
	}
}

// TestSocketIsPatientForSoLong: a client that takes nothing loses its connection; one that takes
// what it is given, however slowly, keeps it.
func TestSocketIsPatientForSoLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		s := &socket{Conn: ours, patience: 20 * time.Second}
		go func() {
			for range 3 {
				time.Sleep(19 * time.Second)
				if _, err := io.ReadFull(theirs, make([]byte, 10)); err != nil {
					t.Error(err)
				}
			}
		}()
		for range 3 {
			s.hold()
			for range 10 {
				if _, err := s.Write([]byte{1}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.release(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		began := time.Now()
		if _, err := s.Write([]byte{1}); err == nil || time.Since(began) != 20*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}
