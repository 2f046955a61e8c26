package importer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

const (
	// pageLimit is how many events a page is asked for.
	pageLimit = 500
	// pageTime bounds the time that a page may take.
	pageTime = 2 * time.Minute
	// tries is how often a page is asked for in a row. Each pause is twice the one before.
	tries      = 5
	firstPause = 2 * time.Second
)

// Relay reads what a relay serves, once: page by page, newest first, until nothing older comes.
type Relay struct {
	url   string
	pause time.Duration
	guard *netguard.Guard
	conn  *wire.Conn
	walk  *session.Walk
	came  int
}

// NewRelay makes a reader of what filters ask the relay at a ws:// or wss:// URL for.
func NewRelay(url string, filters []nostr.Filter) *Relay {
	guard := netguard.New(netguard.Options{AllowPrivate: true}) // the operator has named this relay
	return &Relay{url: url, pause: firstPause, guard: guard, walk: session.NewWalk(filters, pageLimit)}
}

// final is an error that a further try would meet again.
type final struct{ error }

// Lines reads the events of the relay, numbered as they come. What comes is not verified.
func (r *Relay) Lines(each func(Line)) error {
	for more, failed := true, 0; more; {
		err := r.page(each)
		if err == nil {
			more, failed = r.walk.Ended(), 0
			continue
		}
		if r.conn != nil {
			r.conn.Close()
			r.conn = nil
		}
		_, useless := errors.AsType[final](err)
		if failed++; failed >= tries || useless {
			return fmt.Errorf("read the relay %s: %w", r.url, err)
		}
		r.walk.Again()
		time.Sleep(backoff.After(failed, r.pause, time.Minute))
	}
	return nil
}

// Missing says, once everything is read, of which times the relay may have more events than it has
// shown. Such a relay shows fewer at once than were made in one second, or ignores what it is asked
// for.
func (r *Relay) Missing() error {
	gaps := r.walk.Gaps
	if len(gaps) == 0 {
		return nil
	}
	var times []string
	for _, g := range gaps[:min(len(gaps), 10)] {
		times = append(times, g.From.Time().UTC().Format(time.RFC3339)+" to "+g.To.Time().UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("the relay %s may have more events than it shows: those created from %s (%d such times)", r.url,
		strings.Join(times, ", "), len(gaps))
}

// errEnded ends a page.
var errEnded = errors.New("the page has ended")

// page asks for the next page and reads it to its end.
func (r *Relay) page(each func(Line)) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), pageTime)
	defer cancel()
	if r.conn == nil {
		if r.conn, err = wire.Dial(ctx, r.guard, r.url, maxLine); err != nil {
			return err
		}
	}
	id := fmt.Sprint("page-", r.came)
	r.conn.Req(id, r.walk.Filters())
	err = r.conn.Read(ctx, func(m wire.Message) error {
		if m.Sub != id {
			return nil
		}
		return r.hear(m, each)
	})
	if !errors.Is(err, errEnded) {
		return err
	}
	r.conn.Unsubscribe(id)
	return nil
}

// hear takes a message about the page.
func (r *Relay) hear(m wire.Message, each func(Line)) error {
	enough := m.Kind == wire.EOSE
	switch m.Kind {
	case wire.Closed:
		err := fmt.Errorf("it does not answer: %q", m.Reason)
		if strings.HasPrefix(m.Reason, "rate-limited:") || strings.HasPrefix(m.Reason, "error:") {
			return err
		}
		return final{err}
	case wire.Event:
		var fresh bool
		if fresh, enough = r.walk.Saw(m.Event); fresh {
			r.came++
			each(Line{Number: r.came, Event: nostr.Encode(m.Event)})
		}
	}
	if enough {
		return errEnded
	}
	return nil
}
