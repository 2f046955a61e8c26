package relay

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr/nip70"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/auth"
	"tendril.dev/services/gateway/message"
)

// offer takes an event to ingest. Events of a connection are handed on in the order in which they
// came, because a state may follow its announcement; it returns when there is room for the next
// one. The answer comes when ingest has decided.
//
// size is that of its message. There is room for it already if it is a large one; room is called
// when the event is not kept any more.
func (c *connection) offer(ev *nostr.Event, size int64, room func()) {
	c.relay.Metrics.event(ev.Kind)
	refusal := c.tooFast()
	if refusal == "" {
		refusal = Check(ev, c.auth, time.Now(), c.relay.Future)
	}
	if refusal != "" {
		room()
		if strings.HasPrefix(refusal, authRequired) {
			c.challenge()
		}
		c.say(message.OK(ev.ID, false, refusal))
		return
	}
	if size < smallMessage {
		var err error
		if room, err = c.makeRoom(size); err != nil {
			c.say(message.OK(ev.ID, false, "rate-limited: too many events wait for a decision; send it again in a moment"))
			return
		}
	}
	select {
	case c.inFlight <- struct{}{}:
	case <-c.ctx.Done():
		room()
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.relay.Limits.EventTimeout)
	decided := make(chan decision, 1)
	err := c.relay.Ingest.Offer(ctx, candidates.Candidate{
		Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser, Client: c.client,
		Done: func(v proto.Verdict, err error) { decided <- decision{v, err} },
	})
	if err != nil {
		decided <- decision{err: err}
	}
	c.tasks.more()
	c.work.Go(func() {
		defer func() { cancel(); room(); <-c.inFlight; c.tasks.done() }()
		ok, text := c.relay.await(ctx, decided)
		c.say(message.OK(ev.ID, ok, text))
	})
}

// tooFast takes one from the events that the client may send, or says why not.
func (c *connection) tooFast() (refusal string) {
	if ok, wait := c.relay.events.Allow(c.client); !ok {
		return fmt.Sprintf("rate-limited: at most %d events a minute from one address; try again in %s",
			c.relay.Limits.EventsPerMinutePerIP, wait.Round(time.Second)+time.Second)
	}
	return ""
}

// makeRoom waits until an event may be kept until it is decided.
func (c *connection) makeRoom(size int64) (room func(), err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.relay.Limits.EventTimeout)
	defer cancel()
	return c.relay.inbound.AcquireN(ctx, c.client, size)
}

// decision is what became of an event: its verdict, or why there is none.
type decision struct {
	verdict proto.Verdict
	err     error
}

// await returns what an OK message says about an event that was offered.
func (r *Relay) await(ctx context.Context, decided <-chan decision) (ok bool, text string) {
	select {
	case d := <-decided:
		if d.err != nil {
			return false, undecided
		}
		if d.verdict.Seq > 0 {
			// Who was told OK may ask for the event at once. If our index is far behind, the OK is
			// true all the same.
			if err := r.Index.WaitFor(ctx, d.verdict.Seq); err != nil {
				r.Log.Debug("the index is behind a verdict", "error", err)
			}
		}
		return d.verdict.OK(), d.verdict.Message
	case <-ctx.Done():
		return false, undecided
	}
}

const undecided = "error: no decision in time; the event may still be accepted, and may be sent again"

// Check is what the edge checks of an event whose fields have the right form: what needs no
// knowledge of other events. It gives the reason for a refusal with the prefix of NIP-01 or NIP-42,
// or "". by is who the client has proved to be; future is how far ahead of now an event may be.
func Check(ev *nostr.Event, by *auth.Session, now time.Time, future time.Duration) (refusal string) {
	if nostr.IsEphemeralKind(ev.Kind) {
		return "invalid: ephemeral events are not stored"
	}
	if int64(ev.CreatedAt) > now.Add(future).Unix() {
		return fmt.Sprintf("invalid: created_at is more than %s in the future", future)
	}
	// The second of the expiration is still alive (NIP-40).
	if at := eventdb.Expiration(ev); at != 0 && int64(at) < now.Unix() {
		return "invalid: the event has expired"
	}
	if nip70.IsProtected(*ev) && !by.Holds(ev.PubKey) {
		if by.Any() {
			return "restricted: a protected event (NIP-70) is published by its author"
		}
		return authRequired + "a protected event (NIP-70) is taken from its author, who must authenticate (NIP-42)"
	}
	if nip70.HasEmbeddedProtected(*ev) {
		return "blocked: a repost of a protected event (NIP-70)"
	}
	if !nostr.HasID(ev) {
		return "invalid: the id does not fit the event"
	}
	if !nostr.Signed(ev) {
		return "invalid: the signature does not fit the event"
	}
	return ""
}
