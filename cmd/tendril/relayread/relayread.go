// Package relayread reads everything that a relay serves, as lines of JSON: page by page, newest
// first, until nothing older comes (NIP-01).
package relayread

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/cmd/tendril/jsonl"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/wire"
)

// Limits of a Reader. Tests shorten the times.
const (
	// pageLimit is how many events a page is asked for. Relays that show fewer at once may do so.
	pageLimit = 500
	// dialTime bounds the opening of a connection, pageTime the time from the request of a page to
	// its end.
	dialTime = 20 * time.Second
	pageTime = 2 * time.Minute
	// tries is how often a page is asked for in a row, with pause between the first two, and each
	// pause twice the one before.
	tries = 5
	pause = 2 * time.Second
)

// Reader reads one relay, once.
type Reader struct {
	url      string
	progress func(events int)
	pause    time.Duration

	conn   *websocket.Conn
	walk   *history.Walk
	asked  int
	came   int
	notice string // the last that came, quoted
}

// New makes a reader of the relay at a ws:// or wss:// URL. progress is told how many events have
// come; nil: nobody is.
func New(url string, progress func(events int)) *Reader {
	if progress == nil {
		progress = func(int) {}
	}
	return &Reader{url: url, progress: progress, pause: pause, walk: history.NewWalk([]nostr.Filter{{}}, pageLimit)}
}

// final is an error that would come again.
type final struct{ error }

// Named reports whether a name is the URL of a relay, and not that of a file.
func Named(name string) bool {
	return strings.HasPrefix(name, "ws://") || strings.HasPrefix(name, "wss://")
}

// Read writes the events of the relay to out, one on each line. An event may be there twice where a
// connection was lost. What comes is not verified. Its error wraps no other: one of a connection
// may be io.EOF, which would be the good end of a file.
func (r *Reader) Read(ctx context.Context, out io.Writer) error {
	defer r.hangUp()
	for more, failed := true, 0; more; {
		err := r.page(ctx, out)
		if err == nil {
			more, failed = r.walk.Ended(), 0
			continue
		}
		r.hangUp()
		_, useless := errors.AsType[final](err)
		if failed++; failed >= tries || useless || ctx.Err() != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			} else if r.notice != "" {
				err = fmt.Errorf("%w (its last notice: %s)", err, r.notice)
			}
			return fmt.Errorf("read the relay %s: %v", r.url, err)
		}
		r.walk.Again()
		select {
		case <-time.After(r.pause << (failed - 1)):
		case <-ctx.Done():
		}
	}
	return nil
}

// Missing says, once everything is read, of which times the relay may have more events than it has
// shown; nil: there are none. It is one that shows fewer at once than were made in one second, or
// does not heed what it is asked for.
func (r *Reader) Missing() error {
	gaps := r.walk.Gaps()
	if len(gaps) == 0 {
		return nil
	}
	var text strings.Builder
	for i, g := range gaps {
		if i == 10 {
			fmt.Fprintf(&text, ", and %d times more", len(gaps)-i)
			break
		}
		if i > 0 {
			text.WriteString(", ")
		}
		fmt.Fprintf(&text, "%s to %s", g.From.Time().UTC().Format(time.RFC3339), g.To.Time().UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("the relay %s may have more events than it shows: those created from %s", r.url, &text)
}

func (r *Reader) hangUp() {
	if r.conn != nil {
		r.conn.CloseNow()
		r.conn = nil
	}
}

// dial opens the connection. A redirect is not followed: the operator has named this relay.
func (r *Reader) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, r.url, &websocket.DialOptions{HTTPClient: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return err
	}
	conn.SetReadLimit(jsonl.MaxLine)
	r.conn = conn
	return nil
}

// page asks for the next page and reads it to its end.
func (r *Reader) page(ctx context.Context, out io.Writer) error {
	if r.conn == nil {
		if err := r.dial(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	r.asked++
	id := "page-" + strconv.Itoa(r.asked)
	request := []any{"REQ", id}
	for _, f := range r.walk.Filters() {
		request = append(request, f)
	}
	if err := r.send(ctx, request); err != nil {
		return err
	}
	for {
		_, message, err := r.conn.Read(ctx)
		if err != nil {
			return err
		}
		ended, err := r.hear(message, id, out)
		switch {
		case err != nil:
			return err
		case ended:
			return r.send(ctx, []any{"CLOSE", id})
		}
	}
}

func (r *Reader) send(ctx context.Context, message []any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return r.conn.Write(ctx, websocket.MessageText, text)
}

// hear takes a message of the relay. What cannot be read, or belongs to another request, is passed
// over.
func (r *Reader) hear(message []byte, id string, out io.Writer) (ended bool, err error) {
	m, err := wire.Parse(message)
	if err != nil {
		return false, nil
	}
	reason := "no reason is given"
	if m.Reason != "" {
		reason = strconv.Quote(m.Reason[:min(len(m.Reason), 200)])
	}
	switch {
	case m.Kind == wire.Notice:
		r.notice = reason
	case m.Sub != id:
	case m.Kind == wire.EOSE:
		return true, nil
	case m.Kind == wire.Closed:
		err := fmt.Errorf("it does not answer: %s", reason)
		if strings.HasPrefix(m.Reason, "rate-limited:") || strings.HasPrefix(m.Reason, "error:") {
			return false, err
		}
		return false, final{err}
	case m.Kind == wire.Event:
		fresh, ended := r.walk.Saw(m.Event)
		if !fresh {
			return ended, nil
		}
		line := m.Raw
		if line == nil {
			line = nostr.Encode(m.Event)
		}
		// A line break is whitespace between tokens: strings of JSON have none.
		if _, err := out.Write(append(bytes.ReplaceAll(line, []byte("\n"), []byte(" ")), '\n')); err != nil {
			return false, final{fmt.Errorf("write an event: %w", err)}
		}
		r.came++
		r.progress(r.came)
		return ended, nil
	}
	return false, nil
}

// Open returns what [Reader.Read] writes, as it comes. The relay is asked from the first read on,
// because a page that nobody takes would be too late in the end. Its error is met where the events
// end.
func (r *Reader) Open(ctx context.Context) io.ReadCloser {
	in, out := io.Pipe()
	return &opened{PipeReader: in, begin: sync.OnceFunc(func() {
		go func() { out.CloseWithError(r.Read(ctx, out)) }()
	})}
}

type opened struct {
	*io.PipeReader
	begin func()
}

func (o *opened) Read(p []byte) (int, error) {
	o.begin()
	return o.PipeReader.Read(p)
}
