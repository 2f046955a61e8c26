package smarthttp

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/spool"
)

// requestBody reads what a client sends, unpacked, and counts it. A client that sends too slowly is
// cut off, one that sends more than max bytes, packed or unpacked, gets an error that is
// netguard.ErrTooLarge.
func (x *exchange) requestBody(max int64) (io.Reader, error) {
	raw := netguard.LimitBody(&timedBody{x: x, pace: x.options.pace()}, max)
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

// timedBody is the body of a request, which must come at a lowest rate.
type timedBody struct {
	x    *exchange
	pace *pace
}

// Read reads some of the body.
func (b *timedBody) Read(p []byte) (int, error) {
	// The deadline goes when the read is over: it must not strike while the server watches an idle
	// connection for its end.
	done := b.x.seat.transfer(reading, b.pace.wait(0))
	defer b.x.control.SetReadDeadline(time.Time{})
	n, err := b.x.r.Body.Read(p)
	b.x.metrics.transferred(b.x.counted(), received, n)
	if errors.Is(err, io.EOF) {
		b.x.arrived()
	}
	return n, done(n, b.pace.moved(n, err))
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
	if err != nil && !errors.Is(err, io.EOF) && !isTooLarge(err) {
		err = &unreadable{err}
	}
	return n, err
}

// spool makes room for what a client sends. allowed is asked before the first byte goes to disk.
func (x *exchange) spool(allowed func() error) (into *spool.Spool, end func()) {
	disk := &holding{room: x.disk, client: x.client()}
	into = &spool.Spool{Memory: requestMemory, Scratch: x.repo.Scratch, Grow: func(n int64) error {
		if disk.n == 0 {
			if err := allowed(); err != nil {
				return err
			}
		}
		return disk.grow(n)
	}}
	return into, func() {
		into.Close()
		disk.end()
	}
}

// responseStream passes on what git prints as it comes. Its header is sent with the first byte, so
// that a git that fails at once is still answered by a status.
type responseStream struct {
	x           *exchange
	pace        *pace
	contentType string
	preamble    string            // goes before the first byte
	instead     map[string]string // what to send where git says only this
	held        []byte            // the beginning, as long as it may be one of these
	begun       bool
	also        *packetLines // watches what git prints; nil: nobody does
}

// Write sends what it is given and flushes. A client that stops taking is cut off.
func (s *responseStream) Write(p []byte) (int, error) {
	if s.also != nil {
		s.also.Write(p)
	}
	if s.instead != nil && len(s.held)+len(p) <= maxHeld {
		s.held = append(s.held, p...)
		return len(p), nil
	}
	s.instead = nil
	if len(s.held) > 0 {
		held := s.held
		s.held = nil
		if _, err := s.send(held); err != nil {
			return 0, err
		}
	}
	return s.send(p)
}

// maxHeld is the length of the longest beginning that something else may stand for.
const maxHeld = 18

func (s *responseStream) send(p []byte) (int, error) {
	if s.pace == nil {
		s.pace = s.x.options.pace()
	}
	done := s.x.seat.transfer(sending, s.pace.wait(len(p)))
	n, err := s.write(p)
	return n, done(n, s.pace.moved(n, err))
}

func (s *responseStream) write(p []byte) (int, error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	n, err := s.x.w.Write(p)
	s.x.metrics.transferred(s.x.counted(), sent, n)
	if err != nil {
		return n, err
	}
	return n, s.flush()
}

// finish sends what is held, and the header if git had nothing to say.
func (s *responseStream) finish() error {
	if len(s.held) == 0 {
		return s.begin()
	}
	whole := string(s.held)
	if other, ok := s.instead[whole]; ok {
		whole = other
	}
	_, err := s.send([]byte(whole))
	return err
}

func (s *responseStream) begin() error {
	if s.begun {
		return nil
	}
	s.begun = true
	s.x.w.Header().Set("Content-Type", s.contentType)
	s.x.w.WriteHeader(http.StatusOK)
	n, err := io.WriteString(s.x.w, s.preamble)
	s.x.metrics.transferred(s.x.counted(), sent, n)
	return err
}

func (s *responseStream) flush() error {
	if err := s.x.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// lingering is how long what a client still sends is read when it has its answer.
const lingering = 2 * time.Second

// enter lets the connection be closed after an answer that comes before the end of the request.
func (x *exchange) enter() {
	if x.whole = x.r.ContentLength == 0; !x.whole {
		x.w.Header().Set("Connection", "close")
	}
}

// arrived is called when the request has been read to its end.
func (x *exchange) arrived() {
	if !x.whole {
		x.whole = true
		x.w.Header().Del("Connection")
	}
}

// leave gives the connection back as it came. Where the client still sends, which the server reads
// a while to let it see the answer, that ends soon.
func (x *exchange) leave() {
	x.control.SetWriteDeadline(time.Time{})
	if x.whole {
		x.control.SetReadDeadline(time.Time{})
		return
	}
	x.control.SetReadDeadline(time.Now().Add(lingering))
}

func isTooLarge(err error) bool { return errors.Is(err, netguard.ErrTooLarge) }
