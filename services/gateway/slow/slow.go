// Package slow cuts off clients that send or take too slowly over HTTP, so that none of them
// holds a connection, a worker or a git process for as long as it likes.
package slow

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/config"
)

// chunk is how much of an answer a client must take in the time that it has.
const chunk = config.AnswerChunk

// errGone is what a body gives that is read after the answer to its request has ended.
var errGone = errors.New("the request has been answered")

// Handler lets next answer. A client has the time stall for the next bytes of its request, and for
// each 32 KiB of the answer; then its connection ends. If an answer begins before the whole request
// was read, the connection is closed after it: what is still to come is no next request. It is
// closed in two steps, so that the client gets the answer though it is still sending.
//
// It must not be used for requests that take the connection over (WebSockets).
func Handler(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		b := &body{from: r.Body, control: control, stall: stall, ended: r.ContentLength == 0}
		r.Body = b
		defer b.Close()
		next.ServeHTTP(&answer{ResponseWriter: w, control: control, stall: stall, body: b}, r)
		if b.partial() {
			closeInSteps(w)
		}
	})
}

// closeInSteps lets the server of w close the connection in two steps after the answer: first its
// own direction, and half a second later the client's. A client that sends to a connection that is
// closed at once gets a reset, which takes the answer away from it before it has read it. The
// server does so by itself where the body is its own; here it is a [body]. A body that is larger
// than http.MaxBytesReader allows has the same effect, so it is told of one.
func closeInSteps(w http.ResponseWriter) {
	for {
		outer, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			break
		}
		w = outer.Unwrap()
	}
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}

// Begin lets next answer, and gives the client the time stall to take an answer that is written as
// soon as the request is there. It is for requests of any kind; Handler does it for each part of an
// answer.
func Begin(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stall))
		next.ServeHTTP(w, r)
	})
}

// body is that of a request.
type body struct {
	from    io.ReadCloser
	control *http.ResponseController
	stall   time.Duration

	mu     sync.Mutex // guards what follows
	ended  bool       // it was read to its end
	closed bool
}

// Read reads some of the body.
func (b *body) Read(p []byte) (int, error) {
	if !b.deadline(time.Now().Add(b.stall)) {
		return 0, errGone
	}
	n, err := b.from.Read(p)
	// The deadline goes when the read is over: it must not strike while the server watches for the
	// end of the connection.
	b.deadline(time.Time{})
	if err == io.EOF {
		b.mu.Lock()
		b.ended = true
		b.mu.Unlock()
	}
	return n, err
}

// deadline sets that of reading, unless the body is closed: then it reports false.
func (b *body) deadline(at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.control.SetReadDeadline(at)
	}
	return !b.closed
}

// Close ends the body, and a Read that waits for a client that does not send.
func (b *body) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	if !b.ended {
		b.control.SetReadDeadline(time.Now())
	}
	b.mu.Unlock()
	return b.from.Close()
}

// partial reports whether there is more to come from the client.
func (b *body) partial() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended
}

// answer is the answer to a request.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	body    *body
	begun   bool
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader begins the answer.
func (a *answer) WriteHeader(status int) {
	a.control.SetWriteDeadline(time.Now().Add(a.stall))
	if !a.begun && status >= http.StatusOK {
		a.begun = true
		if a.body.partial() {
			a.Header().Set("Connection", "close")
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write writes some of the answer.
func (a *answer) Write(p []byte) (written int, err error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	for {
		part := p[:min(len(p), chunk)]
		a.control.SetWriteDeadline(time.Now().Add(a.stall))
		n, err := a.ResponseWriter.Write(part)
		written += n
		if p = p[len(part):]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// FlushError sends what was written.
func (a *answer) FlushError() error {
	a.control.SetWriteDeadline(time.Now().Add(a.stall))
	return a.control.Flush()
}
