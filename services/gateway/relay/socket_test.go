package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
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

func (n *network) Write(p []byte) (int, error) {
	if n.err != nil {
		return 0, n.err
	}
	n.calls = append(n.calls, string(p))
	return len(p), nil
}

// TestSocketHoldsBack: what is written while a socket is held goes out in order and with few calls,
// and no more is held back than the bound.
func TestSocketHoldsBack(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", mostHeld+1)
	most := strings.Repeat("y", mostHeld)
	for name, c := range map[string]struct{ during, after, want []string }{
		"nothing":                     {nil, nil, nil},
		"small ones go together":      {[]string{"a", "bc", "d"}, nil, []string{"abcd"}},
		"later ones go alone":         {[]string{"a", "b"}, []string{"c", "d"}, []string{"ab", "c", "d"}},
		"a large one is not copied":   {[]string{"a", large, "b"}, nil, []string{"a", large, "b"}},
		"as much as is held":          {[]string{most}, nil, []string{most}},
		"more than that is passed on": {[]string{"a", most, "b", "c"}, nil, []string{"a", most, "bc"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := &network{}
			s := newSocket(time.Hour, nil)
			s.Conn = n
			write := func(what []string) {
				for _, p := range what {
					if got, err := s.Write([]byte(p)); got != len(p) || err != nil {
						t.Fatal(got, err)
					}
				}
			}
			s.hold()
			write(c.during)
			if err := s.release(); err != nil {
				t.Fatal(err)
			}
			if s.buffer != nil {
				t.Error("the buffer is not given back")
			}
			write(c.after)
			if !slices.Equal(n.calls, c.want) {
				t.Errorf("%d calls of %.20q, want %d of %.20q", len(n.calls), n.calls, len(c.want), c.want)
			}
		})
	}
}

// TestSocketTellsOfErrors: what could not be passed on is an error of release.
func TestSocketTellsOfErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	s := newSocket(time.Hour, nil)
	s.Conn = &network{err: broken}
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
		var abandoned time.Duration
		began := time.Now()
		s := newSocket(20*time.Second, func() { abandoned = time.Since(began); ours.Close() })
		s.Conn = ours
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
		if abandoned != 0 {
			t.Fatalf("abandoned after %v", abandoned)
		}
		began = time.Now()
		if _, err := s.Write([]byte{1}); err == nil || abandoned != 20*time.Second {
			t.Errorf("abandoned after %v: %v", abandoned, err)
		}
	})
}

// TestBatchGivesWholeMessages: each event is a message of its own, and what is emptied is gone.
func TestBatchGivesWholeMessages(t *testing.T) {
	t.Parallel()
	b := batch{head: []byte(`["EVENT","s",`)}
	for range 2 {
		b.add([]byte(`{"a":1}`))
		b.add([]byte(`{}`))
		b.end([]byte(`["EOSE","s"]`))
		got := string(bytes.Join(slices.Collect(b.messages()), []byte("\n")))
		if want := `["EVENT","s",{"a":1}]` + "\n" + `["EVENT","s",{}]` + "\n" + `["EOSE","s"]`; got != want {
			t.Errorf("messages:\n%s\nwant:\n%s", got, want)
		}
		b.empty()
	}
}
