package smarthttp

import (
	"bytes"
	"strconv"
)

// negotiation watches a fetch go by: what the client wants and has, and whether it gets a pack. A
// fetch takes several requests in which client and server only find out what both have; it is
// counted by the one that brings the pack.
type negotiation struct {
	wants, haves, pack bool
}

// user is what the user does by this request: "clone", "fetch", or nothing that is done yet. A
// request that failed before its pack is what it would have been.
func (n *negotiation) user(result string) string {
	switch {
	case !n.pack && (result == resultOK || !n.wants):
		return ""
	case n.haves:
		return userFetches
	}
	return userClones
}

// request watches what the client says, in any version of the protocol (gitprotocol-pack,
// gitprotocol-v2).
func (n *negotiation) request() *packetLines {
	return &packetLines{see: func(line []byte) bool {
		n.wants = n.wants || bytes.HasPrefix(line, []byte("want"))
		// Who is shallow has something too.
		n.haves = n.haves || bytes.HasPrefix(line, []byte("have ")) || bytes.HasPrefix(line, []byte("shallow "))
		return !n.haves || !n.wants
	}}
}

// response watches what git says. A pack comes in the bands 1 (data) and 2 (progress) of lines, or,
// to clients that know no bands, as it is.
func (n *negotiation) response() *packetLines {
	return &packetLines{see: func(line []byte) bool {
		n.pack = len(line) > 0 && (line[0] == 1 || line[0] == 2) || bytes.Equal(line, []byte("PACK"))
		return !n.pack
	}}
}

// maxSeen is how much of a line is looked at.
const maxSeen = 8

// packetLines takes a stream of packet lines (gitprotocol-common) and shows the beginning of each,
// until it has been seen enough or what comes is not packet lines; that is shown too, four bytes of
// it. What is written to it is not kept and never fails, so that it can stand beside any stream.
type packetLines struct {
	see  func(line []byte) bool // false: enough
	done bool

	head []byte // of the length, as far as it has come
	left int    // of the line, not yet come
	line []byte // its beginning
}

// Write implements io.Writer.
func (l *packetLines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && !l.done {
		if l.left == 0 {
			p = l.readLength(p)
			continue
		}
		take := min(l.left, len(p))
		l.line = append(l.line, p[:min(take, maxSeen-len(l.line))]...)
		l.left -= take
		p = p[take:]
		if l.left == 0 {
			l.show()
		}
	}
	return n, nil
}

// readLength reads the four hexadecimal digits before a line. 0 to 3 are marks without a line.
func (l *packetLines) readLength(p []byte) []byte {
	take := min(4-len(l.head), len(p))
	l.head = append(l.head, p[:take]...)
	if len(l.head) < 4 {
		return p[take:]
	}
	length, err := strconv.ParseUint(string(l.head), 16, 16)
	if err != nil {
		l.see(l.head)
		l.done = true
		return nil
	}
	l.head = l.head[:0]
	if length > 4 {
		l.left = int(length) - 4
	}
	return p[take:]
}

func (l *packetLines) show() {
	l.done = !l.see(l.line)
	l.line = l.line[:0]
}
