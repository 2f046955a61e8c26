package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr/nip70"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

// tooMany is the reason for the events that a client sends too fast.
const tooMany = "rate_limited"

// offer takes an event to ingest. Events of a connection are handed on in the order in which they
// came, because a state may follow its announcement. The answer comes when ingest has decided.
func (c admitted) offer(m message) {
	r, ev, now := c.relay, m.event, time.Now()
	r.Metrics.events.WithLabelValues(obs.KindLabel(ev.Kind)).Inc()
	reason, refusal := tooMany, c.tooFast()
	if refusal == "" {
		reason, refusal = check(ev, c.proofs.keys)
	}
	if refusal != "" {
		c.reject(ev, reason, refusal)
		if strings.HasPrefix(refusal, authRequired) {
			c.challenge()
		}
		c.tellRefusal(m, refusal)
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, r.Limits.EventTimeout)
	decided := make(chan decision, 1)
	err := r.Ingest.Offer(ctx, candidates.Candidate{
		Event: ev, Lane: proto.LaneUser, Source: proto.SourceUser, Client: c.client, Trace: r.Trace.Span("", "receive", ev,
			now, "relay", ""),
		Done: func(v proto.Verdict, err error) { decided <- decision{v, err} },
	})
	if err != nil {
		decided <- decision{err: err}
	}
	c.task(func() {
		defer cancel()
		v, err := r.await(ctx, decided)
		if c.ctx.Err() != nil {
			return // the client has gone
		}
		if err != nil {
			v.Outcome, reason, v.Message = proto.Rejected, "undecided",
				"error: no decision in time; the event may still be accepted, and may be sent again"
			if errors.Is(err, limit.ErrFull) {
				reason, v.Message = tooMany, r.why(err)
			}
			c.reject(ev, reason, fmt.Sprintf("%s (%v)", v.Message, err))
		}
		c.say("OK", ev.ID, v.OK(), v.Message)
	})
}

// reject counts and logs an event that is refused here. reason is its name in the metrics.
func (c *connection) reject(ev *nostr.Event, reason, why string) {
	c.relay.Metrics.rejected.WithLabelValues(obs.KindLabel(ev.Kind), reason).Inc()
	tell := func() {
		c.relay.Log.Info("event rejected", "event", ev.ID, "kind", ev.Kind, "author", ev.PubKey, "client", c.client,
			"reason", why)
	}
	if reason == tooMany {
		c.slow.Do(tell) // or one client could fill the log
	} else {
		tell()
	}
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
	return fmt.Sprintf("rate-limited: at most %d events a minute from one %s; try again in %s", most, of,
		wait.Round(time.Second)+time.Second)
}

// decision is what became of an event: its verdict, or why there is none.
type decision struct {
	verdict proto.Verdict
	err     error
}

// await returns what became of an event that was offered.
func (r *Relay) await(ctx context.Context, decided <-chan decision) (proto.Verdict, error) {
	select {
	case d := <-decided:
		if d.verdict.Seq > 0 {
			// Who was told OK may ask for the event at once. If our index is far behind, the OK is
			// true all the same.
			if err := r.Index.WaitFor(ctx, d.verdict.Seq); err != nil {
				r.Log.Debug("the index is behind a verdict", "error", err)
			}
		}
		return d.verdict, d.err
	case <-ctx.Done():
		return proto.Verdict{}, ctx.Err()
	}
}

// check is what only the edge can check of an event whose fields have the right form: whether a
// protected one comes from its author, and the id and the signature. The rest is for ingest.
// refusal begins with a prefix of NIP-01 or NIP-42; "": there is none. reason is its name in the
// metrics. by are the keys that the client has proved to hold.
func check(ev *nostr.Event, by map[string]bool) (reason, refusal string) {
	protected := nip70.IsProtected(*ev) && !by[ev.PubKey]
	switch {
	case protected && len(by) > 0:
		return "protected", "restricted: a protected event (NIP-70) is published by its author"
	case protected:
		return "protected", authRequired +
			"a protected event (NIP-70) is taken from its author, who must authenticate (NIP-42)"
	case !nostr.HasID(ev):
		return "malformed", "invalid: the id does not fit the event"
	case !nostr.Signed(ev):
		return "malformed", "invalid: the signature does not fit the event"
	}
	return "", ""
}
