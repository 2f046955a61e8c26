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
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

// tooMany is the reason for the events that a client sends too fast.
const tooMany = "rate_limited"

// offer takes an event to ingest. Events of a connection are handed on in the order in which they
// came, because a state may follow its announcement. The answer comes when ingest has decided.
func (c *connection) offer(m message) {
	r, ev := c.relay, m.event
	kind := obs.KindLabel(ev.Kind)
	r.Metrics.events.WithLabelValues(kind).Inc()
	now, reason, refusal := time.Now(), tooMany, c.tooFast()
	if refusal == "" {
		reason, refusal = check(ev, c.proofs.keys, now, r.Future)
	}
	if refusal != "" {
		r.Metrics.rejected.WithLabelValues(kind, reason).Inc()
		told := func() {
			r.Log.Info("event rejected", "event", ev.ID, "kind", ev.Kind, "author", ev.PubKey, "client", c.client, "reason", reason)
		}
		if reason == tooMany {
			c.slow.Do(told) // or one client could fill the log
		} else {
			told()
		}
		if strings.HasPrefix(refusal, authRequired) {
			c.challenge()
		}
		c.answer(m.refusal(refusal))
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, r.Limits.EventTimeout)
	decided := make(chan decision, 1)
	err := r.Ingest.Offer(ctx, candidates.Candidate{
		Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser, Client: c.client, Trace: r.Trace.Span("", "receive", ev, now, "relay", ""),
		Done: func(v proto.Verdict, err error) { decided <- decision{v, err} },
	})
	if err != nil {
		decided <- decision{err: err}
	}
	c.task(func() {
		defer cancel()
		ok, text := r.await(ctx, decided)
		c.say("OK", ev.ID, ok, text)
	})
}

// tooFast takes one from the events that the connection and its address may send, or says why not.
func (c *connection) tooFast() (refusal string) {
	most, of := c.relay.Limits.EventsPerMinute, "connection"
	ok, wait := c.events.Allow("")
	if ok {
		most, of = c.relay.Limits.EventsPerMinutePerIP, "address"
		ok, wait = c.relay.events.Allow(c.client)
	}
	if ok {
		return ""
	}
	return fmt.Sprintf("rate-limited: at most %d events a minute from one %s; try again in %s", most, of, wait.Round(time.Second)+time.Second)
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

// check is what the edge checks of an event whose fields have the right form: what needs no
// knowledge of other events. refusal begins with a prefix of NIP-01 or NIP-42; "": there is none.
// reason is its name in the metrics. by are the keys that the client has proved to hold; future is
// how far ahead of now an event may be.
func check(ev *nostr.Event, by map[string]bool, now time.Time, future time.Duration) (reason, refusal string) {
	protected := nip70.IsProtected(*ev) && !by[ev.PubKey]
	// The second of the expiration is still alive (NIP-40).
	expires := eventdb.Expiration(ev)
	switch {
	case nostr.IsEphemeralKind(ev.Kind):
		return "ephemeral", "invalid: ephemeral events are not stored"
	case int64(ev.CreatedAt) > now.Add(future).Unix():
		return "future", fmt.Sprintf("invalid: created_at is more than %s in the future", future)
	case expires != 0 && int64(expires) < now.Unix():
		return "expired", "invalid: the event has expired"
	case protected && len(by) > 0:
		return "protected", "restricted: a protected event (NIP-70) is published by its author"
	case protected:
		return "protected", authRequired + "a protected event (NIP-70) is taken from its author, who must authenticate (NIP-42)"
	case nip70.HasEmbeddedProtected(*ev):
		return "protected", "blocked: a repost of a protected event (NIP-70)"
	case !nostr.HasID(ev):
		return "malformed", "invalid: the id does not fit the event"
	case !nostr.Signed(ev):
		return "malformed", "invalid: the signature does not fit the event"
	}
	return "", ""
}
