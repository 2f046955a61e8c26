package relay

import (
	"net"
	"testing"
)

// counted is a connection that counts what it is given.
type counted struct {
	net.Conn
	writes int
	got    string
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes, c.got = c.writes+1, c.got+string(p)
	return len(p), nil
}

// TestASocketGathers: what is written while it is held goes out in one piece, in order, and what is
// written after that at once.
func TestASocketGathers(t *testing.T) {
	t.Parallel()
	under := &counted{}
	s := &socket{Conn: under}
	for round := range 2 {
		s.hold()
		for _, part := range []string{"a", "b", "c"} {
			if _, err := s.Write([]byte(part)); err != nil || under.writes != 2*round {
				t.Fatalf("%d writes while it is held, %v", under.writes, err)
			}
		}
		must(t, s.release())
		if _, err := s.Write([]byte("d")); err != nil || under.writes != 2*round+2 {
			t.Fatalf("%d writes, %v", under.writes, err)
		}
	}
	if under.got != "abcdabcd" {
		t.Errorf("it wrote %q", under.got)
	}
}
