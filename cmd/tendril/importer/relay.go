package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/history"
	"tendril.dev/services/relayconn/wire"
)

const (
	// pageLimit is how many events a page is asked for.
	pageLimit = 500
	// dialTime bounds the opening of a connection, pageTime the time that a page may take with it.
	dialTime = 20 * time.Second
	pageTime = 2 * time.Minute
	// tries is how often a page is asked for in a row. Each pause is twice the one before.
	tries      = 5
	firstPause = 2 * time.Second
)

// Relay reads all that a relay serves, once: page by page, newest first, until nothing older comes.
type Relay struct {
	url   string
	pause time.Duration
	conn  *websocket.Conn
	walk  *history.Walk
	asked int
	came  int
}

// NewRelay makes a reader of the relay at a ws:// or wss:// URL.
func NewRelay(url string) *Relay {
	return &Relay{url: url, pause: firstPause, walk: history.NewWalk([]nostr.Filter{{}}, pageLimit)}
}

// IsRelay reports whether a name is the URL of a relay, and not that of a file.
func IsRelay(name string) bool {
	return strings.HasPrefix(name, "ws://") || strings.HasPrefix(name, "wss://")
}

// errStopped: the caller wants no more events.
var errStopped = errors.New("stopped")

// final is an error that a further try would meet again.
type final struct{ error }

// Lines are the events of the relay, numbered as they come. What comes is not verified.
func (r *Relay) Lines() iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		if err := r.pages(yield); err != nil && !errors.Is(err, errStopped) {
			yield(Line{}, fmt.Errorf("read the relay %s: %w", r.url, err))
		}
	}
}

func (r *Relay) pages(yield func(Line, error) bool) error {
	defer r.hangUp()
	for more, failed := true, 0; more; {
		err := r.page(yield)
		if err == nil {
			more, failed = r.walk.Ended(), 0
			continue
		}
		r.hangUp()
		_, useless := errors.AsType[final](err)
		if failed++; failed >= tries || useless || errors.Is(err, errStopped) {
			return err
		}
		r.walk.Again()
		time.Sleep(r.pause << (failed - 1))
	}
	return nil
}

// Missing says, once everything is read, of which times the relay may have more events than it has
// shown. Such a relay shows fewer at once than were made in one second, or ignores what it is asked
// for.
func (r *Relay) Missing() error {
	gaps := r.walk.Gaps()
	if len(gaps) == 0 {
		return nil
	}
	var times []string
	for _, g := range gaps[:min(len(gaps), 10)] {
		times = append(times, g.From.Time().UTC().Format(time.RFC3339)+" to "+g.To.Time().UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("the relay %s may have more events than it shows: those created from %s (%d such times)", r.url, strings.Join(times, ", "), len(gaps))
}

func (r *Relay) hangUp() {
	if r.conn != nil {
		r.conn.CloseNow()
		r.conn = nil
	}
}

// dial opens the connection. A redirect is not followed: the operator has named this relay.
func (r *Relay) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, r.url, &websocket.DialOptions{HTTPClient: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return err
	}
	conn.SetReadLimit(maxLine)
	r.conn = conn
	return nil
}

// page asks for the next page and reads it to its end.
func (r *Relay) page(yield func(Line, error) bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), pageTime)
	defer cancel()
	if r.conn == nil {
		if err := r.dial(ctx); err != nil {
			return err
		}
	}
	r.asked++
	id := "page-" + strconv.Itoa(r.asked)
	request := []any{"REQ", id}
	for _, f := range r.walk.Filters() {
		request = append(request, f)
	}
	if err := r.send(ctx, request); err != nil {
		return err
	}
	for ended := false; !ended; {
		_, message, err := r.conn.Read(ctx)
		if err != nil {
			return err
		}
		if ended, err = r.hear(message, id, yield); err != nil {
			return err
		}
	}
	return r.send(ctx, []any{"CLOSE", id})
}

func (r *Relay) send(ctx context.Context, message []any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return r.conn.Write(ctx, websocket.MessageText, text)
}

// hear takes a message of the relay, and reports whether it ends the page. A message that cannot be
// read, or that belongs to another request, is passed over.
func (r *Relay) hear(message []byte, id string, yield func(Line, error) bool) (ended bool, err error) {
	m, err := wire.Parse(message)
	if err != nil || m.Sub != id {
		return false, nil
	}
	switch m.Kind {
	case wire.EOSE:
		return true, nil
	case wire.Closed:
		err := fmt.Errorf("it does not answer: %q", m.Reason)
		if strings.HasPrefix(m.Reason, "rate-limited:") || strings.HasPrefix(m.Reason, "error:") {
			return false, err
		}
		return false, final{err}
	case wire.Event:
		fresh, ended := r.walk.Saw(m.Event)
		if !fresh {
			return ended, nil
		}
		r.came++
		if !yield(Line{Number: r.came, Event: nostr.Encode(m.Event)}, nil) {
			return false, errStopped
		}
		return ended, nil
	}
	return false, nil
}
