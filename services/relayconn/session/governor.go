package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

const (
	// maxUnasked is how many events that were not asked for a relay may send on one connection.
	maxUnasked = 100
	// forgedRate and forgedBurst bound how many events a second with a wrong id or signature are
	// looked at: with more, the relay is read more slowly.
	forgedRate, forgedBurst = 100, 200
	// uselessRate and uselessBurst bound how many messages a second are taken that bring nothing:
	// with more, the relay is read more slowly.
	uselessRate, uselessBurst = 5000, 20_000
)

// governor keeps to what the relay allows on one connection: how many requests are open at once and
// how large they are, when nothing may be asked, and who we are (NIP-42). It also bounds what the
// relay may do to us. It knows which requests are open. It does not know what they are for: of a
// refusal it says what follows (a decision), and their owner acts on that.
type governor struct {
	*Options
	limits      wire.Limits
	pausedUntil time.Time // nothing is asked before, because the relay wants quiet
	// limitedUntil is until when something rests that the relay has refused for good.
	limitedUntil time.Time
	alone        int                 // single items in a row that it has refused for good
	open         map[string]openItem // at the relay, by the names of subscriptions
	asks         int
	loweredAt    int // asks when the relay's silence lowered the limits last
	nextID       int

	challenge  string // of the relay, which wants to know who reads (NIP-42)
	authNeeded bool   // it has refused something to those who have not authenticated
	authSent   bool   // we have answered its challenge

	answered bool      // the relay has sent an EOSE
	resumed  time.Time // when an event had waited for room last; the relay was not read meanwhile
	unasked  int
	useless  *rate.Limiter
	forged   *rate.Limiter
}

func newGovernor(o *Options) *governor {
	return &governor{
		Options: o, open: map[string]openItem{},
		useless: rate.NewLimiter(uselessRate, uselessBurst), forged: rate.NewLimiter(forgedRate, forgedBurst),
	}
}

// request is what is known of an item that is open at the relay.
type request struct {
	id       string
	order    int       // counts in the order in which they were asked
	asked    time.Time // last
	heard    time.Time // the last message; until the first one, when it was asked
	answered bool      // there was a message
	ended    bool      // there was an EOSE
	doubted  time.Time // when a NOTICE came since that may be a refusal of it; zero: none did
	proved   bool      // it was refused to those who have not authenticated
}

func (r *request) req() *request { return r }

// openItem is what is open at the relay: *subscription, *task, or *search.
type openItem interface{ req() *request }

// openREQ is an item that is asked for by REQ: *subscription or *task. The relay refuses both in
// the same words.
type openREQ interface {
	openItem
	Filters() []nostr.Filter
	Matches(ev *nostr.Event) bool
}

func isLive(a openItem) bool { _, is := a.(*subscription); return is }

func isPast(a openREQ) bool { return !isLive(a) }

func isUnanswered(a openREQ) bool { return !a.req().answered }

// name makes a name for a subscription.
func (g *governor) name(prefix string) string {
	g.nextID++
	return prefix + strconv.Itoa(g.nextID)
}

// ask asks the relay.
func (g *governor) ask(a openREQ, now time.Time) {
	r := a.req()
	g.asks++
	*r = request{id: r.id, proved: r.proved, order: g.asks, asked: now, heard: now}
	g.open[r.id] = a
	g.Asker.Req(r.id, a.Filters())
}

// stop takes a request back.
func (g *governor) stop(a openREQ) {
	delete(g.open, a.req().id)
	g.Asker.Unsubscribe(a.req().id)
}

func (g *governor) isOpen(a openItem) bool { return g.open[a.req().id] != nil }

// paused reports whether nothing may be asked now.
func (g *governor) paused(now time.Time) bool { return now.Before(g.pausedUntil) }

// latest is the request that was asked last of those that count; nil: there is none.
func (g *governor) latest(counts func(openREQ) bool) (last openREQ) {
	for _, o := range g.open {
		a, is := o.(openREQ)
		if is && (last == nil || a.req().order > last.req().order) && counts(a) {
			last = a
		}
	}
	return last
}

// count counts the open requests that are live, and those that are not. Relays count sessions of
// NIP-77 apart.
func (g *governor) count() (lives, past int) {
	for _, a := range g.open {
		switch a.(type) {
		case *subscription:
			lives++
		case *task:
			past++
		}
	}
	return lives, past
}

// roomForLive reports whether the relay takes one more live subscription.
func (g *governor) roomForLive() bool {
	lives, _ := g.count()
	return g.limits.Live(lives)
}

// together cuts a group into what may go in one REQ each.
func (g *governor) together(group Group) iter.Seq[Group] {
	most := g.limits.Filters()
	if !g.limits.Together(group.Bytes()) {
		most = 1
	}
	return func(yield func(Group) bool) {
		for _, part := range group.cut(g.limits.Values(mostWide)) {
			for some := range slices.Chunk(part, most) {
				if !yield(some) {
					return
				}
			}
		}
	}
}

// pieces cuts groups into what goes in one live subscription each.
func (g *governor) pieces(groups []Group) (pieces [][]Group) {
	most, bytes := g.limits.Filters(), g.limits.Bytes()
	n, size := 0, 0
	for _, group := range groups {
		for part := range g.together(group) {
			if b := part.Bytes(); len(pieces) == 0 || n+len(part) > most || size+b > bytes {
				pieces, n, size = append(pieces, nil), 0, 0
			}
			last := len(pieces) - 1
			pieces[last] = append(pieces[last], part)
			n, size = n+len(part), size+part.Bytes()
		}
	}
	return pieces
}

// heard notes an answer to a request, which is open therefore.
func (g *governor) heard(a openItem, now time.Time) {
	r := a.req()
	r.heard, r.doubted = now, time.Time{}
	if r.answered {
		return
	}
	r.answered = true
	standing := 0
	for _, o := range g.open {
		if _, is := o.(openREQ); is && o.req().answered {
			standing++
		}
	}
	g.limits.Stood(standing)
}

// chargeUseless notes a message that brought nothing. A relay that floods us with them is read more
// slowly, at its own cost: what it owes us does not get more time.
func (g *governor) chargeUseless(ctx context.Context) error { return slowDown(ctx, g.useless) }

func slowDown(ctx context.Context, limiter *rate.Limiter) error {
	if wait := limiter.Reserve().Delay(); wait > 0 {
		return backoff.Sleep(ctx, wait)
	}
	return nil
}

// notTaken counts what the relay sent and ingest does not get.
func (g *governor) notTaken(reason, what string) {
	g.warn("not taken: "+reason, "something that the relay sent is left out", "reason", reason, "what", what)
	g.Observer.NotTaken(reason)
}

// chargeUnasked counts what the relay sent by itself.
func (g *governor) chargeUnasked(what string) error {
	g.notTaken("not asked for", what)
	if g.unasked++; g.unasked > maxUnasked {
		return &netguard.ProtocolError{Err: fmt.Errorf("%d events that were not asked for, the last: %s", g.unasked, what)}
	}
	return nil
}

// chargeForged notes an event with a wrong id or signature. Its relay is read more slowly, and is
// not excluded for it: one stranger could hide a whole relay that does not verify.
func (g *governor) chargeForged(ctx context.Context, what string) error {
	g.notTaken("not genuine", what)
	err := slowDown(ctx, g.forged)
	g.resumed = time.Now() // it was we who did not read
	return err
}

// authenticate answers the relay's challenge (NIP-42) once a connection, if the relay has refused
// something without.
func (g *governor) authenticate() error {
	challenge := g.challenge
	if !g.authNeeded || g.authSent || challenge == "" || g.Authenticate == nil {
		return nil
	}
	g.authSent = true
	if err := g.Authenticate(challenge); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("authenticate to the relay: %w", err)
	}
	return nil
}

// pause has nothing more asked for a while: twice as long each time in a row, up to an hour. What
// the relay says during a pause is about what was asked before it.
func (g *governor) pause(now time.Time, why string) {
	g.pausedUntil = g.Pauses.Begin(now, g.Rules.Cooldown)
	g.warn("quiet", "the relay wants quiet", "reason", why, "until", g.pausedUntil)
}

// Pauses are the times for which a relay wanted quiet, over all sessions with it.
type Pauses struct {
	until time.Time
	last  time.Duration
}

// longestPause is the longest pause; calmAfter a pause without another one, the next is the first
// again.
const longestPause, calmAfter = time.Hour, 5 * time.Minute

// Begin begins a pause, of which the first lasts as long as given, and returns its end.
func (p *Pauses) Begin(now time.Time, first time.Duration) time.Time {
	switch {
	case now.Before(p.until):
		return p.until
	case now.Sub(p.until) >= calmAfter:
		p.last = first
	default:
		p.last = min(2*p.last, longestPause)
	}
	p.until = now.Add(p.last)
	return p.until
}
