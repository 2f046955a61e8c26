package githttp

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

const (
	// chunk is how much a client must send or take within Options.Stall.
	chunk = config.AnswerChunk
	// requestMemory is how much of a request is kept in memory before it is written to disk. There
	// may be as many requests as connections.
	requestMemory = 64 << 10
	// diskStep is what a request or an answer takes of the disk's room at a time.
	diskStep = 1 << 20
	// lingering is how long what a client still sends is read when it has its answer.
	lingering = 2 * time.Second
)

// errSlow is a client that sends or takes too slowly.
var errSlow = errors.New("slower than the lowest rate")

// requestBody reads what a client sends, unpacked, and counts it. A client that sends too slowly is
// cut off, one that sends more than max bytes, packed or unpacked, gets an error that is
// netguard.ErrTooLarge.
func (x *exchange) requestBody(max int64) (io.Reader, error) {
	raw := netguard.LimitBody(&timedBody{x: x}, max)
	switch encoding := strings.ToLower(x.r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return raw, nil
	case "gzip", "x-gzip":
		unpacked, err := gzip.NewReader(raw)
		if errors.Is(err, errSlow) {
			return nil, err
		}
		if err != nil {
			return nil, malformed("the body is not gzip: %v", err)
		}
		return netguard.LimitBody(unpacked, max), nil
	default:
		return nil, malformed("the Content-Encoding %q is not known", encoding)
	}
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
	b.x.transferred(received, n)
	b.x.whole = b.x.whole || errors.Is(err, io.EOF)
	return n, tooSlow(err)
}

func tooSlow(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlow
	}
	return err
}

// unreadable is a request that ended before its end.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return "read what the client sends: " + e.err.Error() }
func (e *unreadable) Unwrap() error { return e.err }

// fromClient tells a failure to read what a client sends from others.
type fromClient struct{ from io.Reader }

// Read reads from the client.
func (c fromClient) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &unreadable{err}
	}
	return n, err
}

// drain reads what the client still sends, so that it comes to read our answer. Where that does not
// come to an end, the connection is closed after the answer.
func drain(body io.Reader) { _, _ = io.Copy(io.Discard, body) }

// room is what one request has of the disk.
type room struct {
	disk   *limit.Fair
	client string
	free   int64 // taken and not used yet
	steps  []func()
}

// grow takes n bytes more. The error is limit.ErrFull or limit.ErrShare.
func (r *room) grow(n int64) error {
	for r.free < n {
		release, err := r.disk.Try(r.client, diskStep)
		if err != nil {
			return err
		}
		r.steps, r.free = append(r.steps, release), r.free+diskStep
	}
	r.free -= n
	return nil
}

// end gives everything back.
func (r *room) end() {
	for _, release := range r.steps {
		release()
	}
	r.steps, r.free = nil, 0
}

// spool makes room for what a client sends. allowed is asked before the first byte goes to disk.
func (x *exchange) spool(allowed func() error) (into *repository.Spool, end func()) {
	room := &room{disk: x.disk, client: x.client}
	into = x.repo.Store().Spool(requestMemory, func(n int64) error {
		if room.steps == nil {
			if err := allowed(); err != nil {
				return err
			}
		}
		return room.grow(n)
	})
	return into, func() {
		into.Close()
		room.end()
	}
}

// answer is what is sent to a client. Its header goes with the first byte, so that a git that fails
// at once is still answered by a status.
type answer struct {
	x           *exchange
	contentType string
	preamble    string // goes before the first byte
	begun       bool
}

// Write sends what it is given and flushes. A client that stops taking is cut off.
func (a *answer) Write(p []byte) (written int, err error) {
	for len(p) > 0 && err == nil {
		var n int
		part := p[:min(len(p), chunk)]
		a.x.control.SetWriteDeadline(time.Now().Add(a.x.Stall))
		if err = a.begin(); err == nil {
			n, err = a.x.w.Write(part)
		}
		if err == nil {
			if err = a.x.control.Flush(); errors.Is(err, http.ErrNotSupported) {
				err = nil
			}
		}
		a.x.transferred(sent, n)
		p, written = p[n:], written+n
	}
	return written, tooSlow(err)
}

// begin sends the header, which is all where git has nothing to say.
func (a *answer) begin() error {
	if a.begun {
		return nil
	}
	a.begun = true
	a.x.w.Header().Set("Content-Type", a.contentType)
	a.x.w.WriteHeader(http.StatusOK)
	n, err := io.WriteString(a.x.w, a.preamble)
	a.x.transferred(sent, n)
	return err
}
