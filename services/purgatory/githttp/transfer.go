package githttp

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

const (
	// chunk is how much a client must send or take within Options.Stall.
	chunk = config.AnswerChunk
	// lingering is how long what a client still sends is read when it has its answer.
	lingering = 2 * time.Second
)

// requestBody reads what a client sends, unpacked, and counts it. A client that sends too slowly is
// cut off, one that sends more than max bytes, packed or unpacked, gets an error that is
// netguard.ErrTooLarge.
func (x *exchange) requestBody(max int64) (io.Reader, error) {
	raw := clientBody{x, netguard.LimitBody(&timedBody{x: x}, max)}
	x.raw = raw
	switch encoding := strings.ToLower(x.r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return raw, nil
	case "gzip", "x-gzip":
		unpacked, err := gzip.NewReader(raw)
		if _, known := errors.AsType[*failure](err); err != nil && !known {
			err = malformed("the body is not gzip: %v", err)
		}
		if err != nil {
			return nil, err
		}
		return clientBody{x, netguard.LimitBody(&inflated{x: x, from: unpacked}, max)}, nil
	default:
		return nil, malformed("the Content-Encoding %q is not known", encoding)
	}
}

// inflated is an unpacked body. Packs are compressed already, and lists of object ids hardly can
// be: what unpacks to much more than was sent is not kept.
type inflated struct {
	x    *exchange
	from io.Reader
	size int64
}

// A body may unpack to inflatedOfAny bytes, and inflatedPerByte for each that was sent.
const (
	inflatedOfAny   = 1 << 20
	inflatedPerByte = 10
)

var errInflated = fmt.Errorf("the request unpacks to more than %d times its size", inflatedPerByte)

// Read reads unpacked bytes.
func (b *inflated) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.size += int64(n); b.size > inflatedOfAny+inflatedPerByte*b.x.received {
		return 0, errInflated
	}
	return n, err
}

// timedBody is the body of a request, each chunk of which must come in time.
type timedBody struct {
	x     *exchange
	left  int // of the chunk
	until time.Time
}

// Read reads some of the body.
func (b *timedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		b.left, b.until = chunk, time.Now().Add(b.x.Stall)
	}
	// The deadline goes when the read is over: it must not strike while the server watches an idle
	// connection for its end.
	b.x.control.SetReadDeadline(b.until)
	defer b.x.control.SetReadDeadline(time.Time{})
	n, err := b.x.r.Body.Read(p[:min(len(p), b.left)])
	b.left -= n
	b.x.received += int64(n)
	b.x.transferred("in", n)
	b.x.whole = b.x.whole || errors.Is(err, io.EOF)
	return n, err
}

// clientBody makes a failure of the client's of every error.
type clientBody struct {
	x    *exchange
	from io.Reader
}

// Read reads from the client.
func (c clientBody) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	_, known := errors.AsType[*failure](err)
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, netguard.ErrTooLarge), errors.Is(err, errInflated), known:
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = c.x.tooSlow()
	default:
		err = errLost
	}
	return n, err
}

// tooSlow is a client that sends or takes too slowly.
func (x *exchange) tooSlow() error {
	return &failure{resultSlow, fmt.Sprintf("the request came too slowly: less than %d bytes in %v", chunk, x.Stall),
		http.StatusRequestTimeout, nil}
}

// drain reads what the client still sends, and unpacks nothing of it, so that the client comes to
// read our answer. Where that does not come to an end, the connection is closed after the answer.
func (x *exchange) drain() { _, _ = io.Copy(io.Discard, x.raw) }

// packHeader begins a pack.
var packHeader = []byte("PACK\x00\x00\x00\x02")

// Write sends a part of the answer and flushes it. The header goes with the first byte, so that a
// git that fails at once is still answered by a status. A client that stops taking is cut off.
func (x *exchange) Write(p []byte) (written int, err error) {
	x.pack = x.pack || bytes.Contains(p, packHeader)
	for len(p) > 0 && err == nil {
		var n int
		x.control.SetWriteDeadline(time.Now().Add(x.Stall))
		if err = x.begin(); err == nil {
			n, err = x.w.Write(p[:min(len(p), chunk)])
		}
		if err == nil {
			if err = x.control.Flush(); errors.Is(err, http.ErrNotSupported) {
				err = nil
			}
		}
		x.transferred("out", n)
		p, written = p[n:], written+n
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = x.tooSlow()
	}
	return written, err
}

// begin sends the header, which is all where git has nothing to say.
func (x *exchange) begin() error {
	if x.begun {
		return nil
	}
	x.begun = true
	x.w.Header().Set("Content-Type", x.contentType)
	x.w.WriteHeader(http.StatusOK)
	n, err := io.WriteString(x.w, x.preamble)
	x.transferred("out", n)
	return err
}

// buffer is between git, which writes an answer, and a client that reads it more slowly, so that
// git ends and its process is free. Where its spool has no room, git waits.
type buffer struct {
	changed *sync.Cond // its lock is for what follows
	spool   *repository.Spool
	read    int64
	ended   error
}

// errGone ends the writing of what is not read any more.
var errGone = errors.New("the answer is not read any more")

// Write appends, and waits while there is no room. Where everything is read already, waiting makes
// none: then the answer ends.
func (b *buffer) Write(p []byte) (written int, err error) {
	b.changed.L.Lock()
	defer b.changed.L.Unlock()
	for len(p) > 0 && b.ended == nil {
		if b.read == b.spool.Size() {
			b.spool.Rewind()
			b.read = 0
		}
		n, err := b.spool.Write(p[:min(len(p), chunk)])
		p, written = p[n:], written+n
		b.changed.Broadcast()
		switch {
		case err == nil:
		case b.spool.Size() == 0:
			b.ended = err
		default:
			b.changed.Wait()
		}
	}
	return written, b.ended
}

// end ends the writing: Read gives err after what was written, unless it has ended before.
func (b *buffer) end(err error) {
	b.changed.L.Lock()
	defer b.changed.L.Unlock()
	b.ended = cmp.Or(b.ended, err)
	b.changed.Broadcast()
}

// Read reads what was written.
func (b *buffer) Read(p []byte) (int, error) {
	b.changed.L.Lock()
	defer b.changed.L.Unlock()
	for b.read == b.spool.Size() {
		if b.ended != nil {
			return 0, b.ended
		}
		b.changed.Wait()
	}
	defer b.changed.Broadcast()
	n, err := b.spool.Reader(b.read).Read(p)
	b.read += int64(n)
	return n, err
}
