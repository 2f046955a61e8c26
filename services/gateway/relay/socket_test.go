package relay

import (
	"net"
	"strings"
	"testing"
)

// network is a connection that notes each system call.
type network struct {
	net.Conn
	calls []string
}

func (n *network) Write(p []byte) (int, error) {
	n.calls = append(n.calls, string(p))
	return len(p), nil
}

// TestSocketHoldsBack: what is written while a socket is held goes out in order and with few calls.
func TestSocketHoldsBack(t *testing.T) {
	t.Parallel()
	n := &network{}
	s := &socket{Conn: n}
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
	must(t, s.release())
	held := len(n.calls)
	if held > 4 {
		t.Errorf("%d calls", held)
	}
	write("f", "g")
	if got := strings.Join(n.calls, ""); got != want || len(n.calls) != held+2 {
		t.Errorf("%d bytes in %d calls, want %d in %d", len(got), len(n.calls), len(want), held+2)
	}
}
