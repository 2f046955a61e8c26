package githttp

import (
	"bytes"
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
	"tendril.dev/lib/limit"
	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repository"
)

const (
	// chunk is how much a client must send or take within Options.Stall.
	chunk = config.AnswerChunk
	// requestMemory and answerMemory are how much is kept in memory before the rest goes to disk.
	// There may be as many requests as connections.
	requestMemory = 64 << 10
	answerMemory  = 64 << 10
	// diskStep is what a request or an answer takes of the disk's room at a time.
	diskStep = 1 << 20
	// lingering is how long what a client still sends is read when it has its answer.
	lingering = 2 * time.Second
)

// requestBody reads what a client sends, unpacked, and counts it. A client that sends too slowly is
// cut off, one that sends more than max bytes, packed or unpacked, gets an error that is
// netguard.ErrTooLarge.
func (x *exchange) requestBody(max int64) (io.Reader, error) {
	raw := clientBody{x, netguard.LimitBody(&timedBody{x: x}, max)}
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
		return clientBody{x, netguard.LimitBody(unpacked, max)}, nil
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
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, netguard.ErrTooLarge), known:
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = c.x.tooSlow()
	default:
		err = &failure{resultGone, "the connection was lost", http.StatusBadRequest, nil}
	}
	return n, err
}

// tooSlow is a client that sends or takes too slowly.
func (x *exchange) tooSlow() error {
	return &failure{resultSlow, fmt.Sprintf("the request came too slowly: less than %d bytes in %v", chunk, x.Stall), http.StatusRequestTimeout, nil}
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

// packHeader begins a pack.
var packHeader = []byte("PACK\x00\x00\x00\x02")

// answer is what is sent to a client. Its header goes with the first byte, so that a git that fails
// at once is still answered by a status.
type answer struct {
	x           *exchange
	contentType string
	preamble    string // goes before the first byte
	begun       bool
	pack        bool // there is a pack in it
}

// Write sends what it is given and flushes. A client that stops taking is cut off.
func (a *answer) Write(p []byte) (written int, err error) {
	a.pack = a.pack || bytes.Contains(p, packHeader)
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
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = a.x.tooSlow()
	}
	return written, err
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

// buffer stands between git, which writes an answer, and a client that reads it more slowly: in
// memory first, then on disk as long as there is room, so that git ends and its process is free.
// Where there is no room, git waits.
type buffer struct {
	scratch func() (*os.File, error)
	room    *room

	mu       sync.Mutex
	changed  sync.Cond
	memory   []byte // older than what is in the file
	file     *os.File
	from, to int64 // what is in the file and not read
	ended    error // how writing ended
	gone     bool  // nothing is read any more
}

func newBuffer(scratch func() (*os.File, error), room *room) *buffer {
	b := &buffer{scratch: scratch, room: room}
	b.changed.L = &b.mu
	return b
}

// errGone ends the writing of what is not read any more.
var errGone = errors.New("the answer is not read any more")

// Write appends, and waits while there is no room.
func (b *buffer) Write(p []byte) (written int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(p) > 0 {
		n := 0
		switch {
		case b.gone:
			return written, errGone
		case b.from == b.to && len(b.memory) < answerMemory:
			n = min(len(p), answerMemory-len(b.memory))
			b.memory = append(b.memory, p[:n]...)
		case b.spill(p):
			n = len(p)
		default:
			b.changed.Wait()
			continue
		}
		p, written = p[n:], written+n
		b.changed.Broadcast()
	}
	return written, nil
}

// spill puts p behind what is in the file, if there is room.
func (b *buffer) spill(p []byte) bool {
	if b.file == nil {
		file, err := b.scratch()
		if err != nil {
			return false // memory has to do
		}
		b.file = file
	}
	if b.room.grow(int64(len(p))) != nil {
		return false
	}
	if _, err := b.file.WriteAt(p, b.to); err != nil {
		return false
	}
	b.to += int64(len(p))
	return true
}

// end is called when everything is written: err is io.EOF, or what went wrong.
func (b *buffer) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = err
	b.changed.Broadcast()
}

// Read reads what was written, and then returns what end was told.
func (b *buffer) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.memory) == 0 && b.from == b.to {
		if b.ended != nil {
			return 0, b.ended
		}
		b.changed.Wait()
	}
	defer b.changed.Broadcast()
	if len(b.memory) > 0 {
		n := copy(p, b.memory)
		b.memory = b.memory[:copy(b.memory, b.memory[n:])]
		return n, nil
	}
	n, err := b.file.ReadAt(p[:min(int64(len(p)), b.to-b.from)], b.from)
	if b.from += int64(n); err == nil && b.from == b.to {
		b.from, b.to = 0, 0
		b.room.end()
		err = b.file.Truncate(0)
	}
	if err != nil {
		err = fmt.Errorf("read an answer from disk: %w", err)
	}
	return n, err
}

// close ends the reading.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	b.changed.Broadcast()
	b.room.end()
	if b.file != nil {
		b.file.Close()
	}
}
