// Package hunt decides which git server is asked next for what. Everything is hunted per
// identifier: an attempt asks one server after the other for what each repository misses, and the
// next attempt follows after a back-off. What waits for a busy host goes on waiting beside the
// attempts, in the host's queue. It does not fetch, and does not know what is missing: it is told.
//
// It is polite: so many fetches at once and in any minute from one host, and none for a while after
// the host says that these are too many. It is fair: no domain, and no author on whose behalf
// servers are asked, has more than a quarter of all fetches at once. Owners who are served come
// before strangers, three to one. What waits longest is next. It is driven by triggers (something
// is missing, a fetch ends, the minute moves on) and never polls, and one choice costs the same
// with any number of identifiers that wait.
package hunt

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/netguard"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// maxRequests bounds the requests of one attempt. Anybody may announce an identifier, with as
	// many URLs as will fit, so that there can be more of them than are ever asked.
	maxRequests = 1000
	// maxURLs bounds those that one search has at a time; in its next attempt it has others.
	maxURLs = 32
	// maxAsked is how many answers of git servers are remembered for an identifier.
	maxAsked = 20
	// attemptsInVain is after how many a hunt ends that no held event waits for: about 30 minutes.
	attemptsInVain = 17
	// rarely is the time between two attempts for what is kept though its time is over.
	rarely = time.Hour
	// maxRetries is how often one ticket waits again because its host was asked too often.
	maxRetries = 10
	// stepsAtOnce is how many steps are made before others get the lock.
	stepsAtOnce = 8
)

// Options are the rules of a hunter and what it works with.
type Options struct {
	Base, Max time.Duration // back-off between attempts: Base, doubled each time, at most Max
	Limits    Limits
	// Share says among how many workers the limits of servers are divided, and which of them this
	// one is, from 0.
	Share func() (place, workers int)
	// Fetch asks one server for what one repository misses.
	Fetch func(ctx context.Context, identifier string, from repostate.Source, want repostate.Want) Outcome
	// Look asks for a call of Seek for an identifier at a time; something may have come to the
	// owner's repository, if one is named. It must not block.
	Look func(identifier, owner string, at time.Time)
	Log  *slog.Logger
}

// Outcome is how a fetch ended.
type Outcome struct {
	// Failed is why nothing came that was wanted; "": something did, or nothing was missing any more.
	Failed netguard.Cause
	// Answer is for people; "": this worker did not let the server answer.
	Answer string
	// Requests is how many requests the server got.
	Requests int
	// Pause: the server says that it is asked too often, and perhaps for how long it must be left
	// alone.
	Pause      bool
	RetryAfter time.Duration
}

// Hunter hunts what Seek tells it. It is safe for concurrent use.
type Hunter struct {
	Options
	wake    chan struct{} // something may be asked now
	fetches sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context // of the fetches
	hunts    map[string]*hunt
	schedule *schedule
	paused   []*hunt // whose attempts may have nothing left to ask
}

// hunt is what is hunted of one identifier.
type hunt struct {
	identifier string
	attempts   int
	next       time.Time // of the next attempt; zero: when a host has had its turn
	open       bool      // an attempt is under way
	asks       bool      // it has asked something
	tried      bool      // all URLs were asked
	left       bool      // some have not had their turn yet
	renewed    bool      // an event came, and Wanted has not been called since
	rare       bool      // nothing waits for it but what is kept though its time is over
	checked    bool      // it is in Hunter.paused
	searches   map[fetchKey]*search
	pending    int // requests under way, and tickets that wait
	waited     Waited
	asked      []proto.Asked     // the last answers
	turns      map[string]uint64 // of each URL, when it was last chosen; nil while all are
	turn       uint64
}

// fetchKey is what is asked for one request after the other: what one repository misses, for one who
// pays for it.
type fetchKey struct{ owner, payer string }

func fetchKeyOf(w repostate.Want) fetchKey { return fetchKey{w.Owner, w.Payer} }

// search is the hunt for what one repository misses.
type search struct {
	of      *hunt
	want    repostate.Want
	tickets []*ticket
	asking  string // URL of the request under way
	stale   bool   // something came, and Seek has not been called since
	gone    bool   // nothing is missing any more
}

func (s *search) isBusy() bool { return s.asking != "" || s.stale || s.gone }

func (s *search) class() class {
	if s.want.Served {
		return served
	}
	return stranger
}

// New makes a hunter.
func New(o Options) *Hunter {
	return &Hunter{Options: o, wake: make(chan struct{}, 1), hunts: map[string]*hunt{}, schedule: newSchedule(o.Limits)}
}

// Run hunts until ctx ends. Fetches under way end with it.
func (h *Hunter) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	timer := time.NewTimer(window)
	defer timer.Stop()
	for ctx.Err() == nil {
		place, workers := h.Share()
		more, wakes := true, time.Time{}
		for more && ctx.Err() == nil {
			more, wakes = h.step(share{place, workers})
		}
		wait := window // the number of workers may have changed
		if !wakes.IsZero() {
			wait = min(wait, max(0, time.Until(wakes)))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-h.wake:
		}
	}
	h.mu.Lock()
	clear(h.hunts)
	h.mu.Unlock()
	h.fetches.Wait()
	return nil
}

// triggered has the next requests chosen.
func (h *Hunter) triggered() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// step makes some of the requests that can be made now, or ends attempts that can ask nothing more.
// The lock is held for a few choices only. wakes is when a host may be asked again.
func (h *Hunter) step(part share) (more bool, wakes time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.schedule.part = part
	for range stepsAtOnce {
		t, r, more := h.schedule.next(now)
		switch {
		case t != nil:
			h.request(t, r, now)
		case !more:
			for range min(len(h.paused), stepsAtOnce) {
				one := h.paused[0]
				h.paused, one.checked = h.paused[1:], false
				h.pause(one, now)
			}
			if first, any := h.schedule.asleep.First(); any {
				wakes = first.wakes
			}
			return len(h.paused) > 0, wakes
		}
	}
	return true, wakes
}

// Add notes that a new event waits: the attempts count from one again, and the next one comes
// sooner if delay says so, never later.
func (h *Hunter) Add(identifier string, delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := time.Now().Add(delay)
	one := h.hunts[identifier]
	if one == nil {
		one = &hunt{identifier: identifier, next: at, searches: map[fetchKey]*search{}}
		h.hunts[identifier] = one
	}
	if one.open { // the next attempt would follow after the back-off at the earliest
		one.next = time.Now().Add(h.backoff(one))
	}
	if at.Before(one.next) || one.next.IsZero() {
		one.next = at
	}
	one.attempts, one.open, one.renewed, one.rare, one.tried = 0, false, true, false, false
	h.Log.Debug("hunt: queued", "identifier", identifier, "delay", delay)
	h.Look(identifier, "", one.next)
}

// Len is how many identifiers are hunted for.
func (h *Hunter) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.hunts)
}

// Drop forgets those identifiers that which picks.
func (h *Hunter) Drop(which func(identifier string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for identifier, one := range h.hunts {
		if which(identifier) {
			h.drop(one)
		}
	}
	h.triggered()
}

func (h *Hunter) drop(one *hunt) {
	for at := range one.searches {
		h.dropSearch(one, at)
	}
	delete(h.hunts, one.identifier)
}

func (h *Hunter) dropSearch(one *hunt, at fetchKey) {
	s, now := one.searches[at], time.Now()
	for _, t := range s.tickets {
		h.schedule.leave(t, now)
		one.count(-1, now)
	}
	s.tickets, s.gone = nil, true
	delete(one.searches, at)
}

// count counts what an identifier waits for.
func (one *hunt) count(more int, now time.Time) {
	before := one.pending
	one.pending += more
	switch {
	case before == 0 && one.pending > 0:
		one.waited.begin(now)
	case before > 0 && one.pending == 0:
		one.waited.end(now)
	}
}

// waitedAt is the times that do not count, with the time in which an attempt was due and the worker
// has not come to it: where very many identifiers wait, that takes longer than events are held.
func (one *hunt) waitedAt(now time.Time) Waited {
	waited := one.waited
	if one.isDue(now) && !waited.Now() {
		waited.begin(one.next)
	}
	return waited
}

// Wanted reports whether Seek must be called for an identifier, and whether for all of it because
// an attempt begins. It is called before what is missing is read: an event that comes meanwhile is
// for the next time.
func (h *Hunter) Wanted(identifier string) (seek, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hunts[identifier]
	if one == nil {
		return false, false
	}
	one.renewed = false
	all = one.isDue(time.Now())
	return all || len(one.searches) > 0, all
}

func (one *hunt) isDue(now time.Time) bool {
	return !one.open && !one.next.IsZero() && !now.Before(one.next)
}

// Status is how the hunt for an identifier stands.
type Status struct {
	// Next is when the next attempt begins; zero: one is under way, or waits for its turn at a host.
	Next time.Time
	// Tried: all that can be asked was asked once since the last new event, or nothing is hunted.
	Tried bool
	// Waited is the times that do not count.
	Waited Waited
}

// Status tells how the hunt for an identifier stands.
func (h *Hunter) Status(identifier string) Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hunts[identifier]
	if one == nil {
		return Status{Tried: true}
	}
	s := Status{Tried: one.tried && !one.open, Waited: one.waitedAt(time.Now())}
	if !one.open {
		s.Next = one.next
	}
	return s
}

// Asked returns the last answers for an identifier.
func (h *Hunter) Asked(identifier string) []proto.Asked {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.hunts[identifier]; one != nil {
		return slices.Clone(one.asked)
	}
	return nil
}

// Found is what a look at the repositories of an identifier has found.
type Found struct {
	Wants   []repostate.Want   // what they miss
	Sources []repostate.Source // where that may be
	// Of says for whose repositories that is told.
	Of func(owner string) bool
	// All: for all of them.
	All bool
	// Rare: nothing waits but what is kept though its time is over.
	Rare bool
}

// Seek tells what repositories of an identifier miss now and where that may be. If that is all, the
// hunt ends if nothing is missing, and an attempt begins if it is time for one.
func (h *Hunter) Seek(identifier string, f Found) {
	one, begins := h.begins(identifier, f)
	if !begins {
		return
	}
	// Which URLs are next is worked out without the lock: there may be very many.
	plan, turns, left := planOf(identifier, f, one.turns, one.turn+1)
	for _, of := range plan {
		h.mu.Lock()
		if h.hunts[identifier] == one {
			h.add(one, of)
		}
		h.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hunts[identifier] == one {
		one.turns, one.turn, one.left = turns, one.turn+1, left
		h.mayPause(one)
	}
}

// begins takes in what was found, and reports whether an attempt begins.
func (h *Hunter) begins(identifier string, f Found) (one *hunt, begins bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one = h.hunts[identifier]; one == nil {
		return nil, false
	}
	now := time.Now()
	h.keep(one, f.Wants, f.Of, now)
	waits := slices.ContainsFunc(f.Wants, func(w repostate.Want) bool { return w.Waits })
	switch {
	case f.All && (len(f.Wants) == 0 || !waits && one.attempts >= attemptsInVain):
		if !one.renewed {
			h.Log.Debug("hunt: done", "identifier", identifier, "missing", len(f.Wants))
			h.drop(one)
		}
	case f.All && one.isDue(now):
		if one.waited = one.waitedAt(now); one.pending == 0 {
			one.waited.end(now)
		}
		one.open, one.asks, one.rare = true, false, f.Rare
		h.Log.Debug("hunt: attempt begins", "identifier", identifier, "attempt", one.attempts+1)
		begins = true
	case !f.All && len(one.searches) == 0 && (one.open || one.attempts > 0 || one.next.IsZero()):
		// Nothing is missing any more of what the attempts were about: all of it is looked at.
		one.open, one.next = false, now
		h.Look(identifier, "", one.next)
	default:
		h.mayPause(one)
	}
	h.triggered()
	return one, begins
}

// keep drops the searches for what is not missing any more, and lets the others go on.
func (h *Hunter) keep(one *hunt, wants []repostate.Want, of func(owner string) bool, now time.Time) {
	still := map[fetchKey]repostate.Want{}
	for _, w := range wants {
		still[fetchKeyOf(w)] = w
	}
	for at, s := range one.searches {
		w, is := still[at]
		switch {
		case !of(at.owner):
		case is:
			if w.Served != s.want.Served {
				for _, t := range s.tickets {
					h.schedule.leave(t, now)
				}
			}
			s.want, s.stale = w, false
			h.resume(s, now)
		default:
			h.dropSearch(one, at)
		}
	}
}

// resume puts back the tickets of a search that waited aside because it was busy.
func (h *Hunter) resume(s *search, now time.Time) {
	if s.isBusy() {
		return
	}
	for _, t := range s.tickets {
		h.schedule.enqueue(t, now)
	}
}

// add gives a search its requests, but for those that it has left from the attempts before.
func (h *Hunter) add(one *hunt, p planned) {
	now := time.Now()
	s := one.searches[fetchKeyOf(p.want)]
	if s == nil {
		s = &search{of: one, want: p.want}
		one.searches[fetchKeyOf(p.want)] = s
	}
	known := map[string]bool{s.asking: true}
	for _, t := range s.tickets {
		for _, r := range t.requests {
			known[r.source.URL] = true
		}
	}
	for _, r := range p.requests {
		if known[r.source.URL] || h.schedule.host(r.host, now).isBroken(r, now) {
			continue
		}
		if h.schedule.add(s, r, now) {
			one.count(1, now)
		}
	}
	h.triggered()
}

// request makes a request of a ticket, unless its host has turned out to be broken.
func (h *Hunter) request(t *ticket, r request, now time.Time) {
	s, host := t.search, t.pair.line.host
	if len(t.requests) == 0 {
		s.tickets = slices.DeleteFunc(s.tickets, func(other *ticket) bool { return other == t })
		s.of.count(-1, now)
	}
	if host.isBroken(r, now) {
		h.schedule.leave(t, now) // another may come from a gate
		h.resume(s, now)
		h.mayPause(s.of)
		return
	}
	s.asking, s.of.asks = r.source.URL, true
	s.of.count(1, now)
	h.schedule.begin(t, now)
	class, author, since := t.pair.line.class, t.pair.author, t.since
	t.since = h.schedule.turn // what it has left waits from now on
	want, ctx := s.want, h.ctx
	h.fetches.Go(func() {
		out := h.Fetch(ctx, s.of.identifier, r.source, want)
		h.mu.Lock()
		defer h.mu.Unlock()
		now := time.Now()
		warn := host.learn(r, out, now)
		h.schedule.end(host, class, author, now)
		if out.Pause {
			t.since = since // it has not had its turn
		}
		h.ended(s, t, r, out, warn, now)
	})
}

// ended takes note of the end of a request.
func (h *Hunter) ended(s *search, t *ticket, r request, out Outcome, warn bool, now time.Time) {
	defer h.triggered()
	one := s.of
	h.tell(one, r, out, warn)
	s.asking = ""
	if !s.gone && out.Pause && t.retries < maxRetries {
		t.retries++
		t.requests = append([]request{r}, t.requests...)
		if !slices.Contains(s.tickets, t) {
			s.tickets = append(s.tickets, t)
			one.count(1, now)
		}
	}
	one.count(-1, now)
	// What came, by this fetch or another, is looked at before the search goes on.
	if s.stale = out.Failed == ""; s.stale {
		h.Look(one.identifier, s.want.Owner, now)
	}
	if h.hunts[one.identifier] == one {
		h.resume(s, now)
		one.asked = append(one.asked[max(0, len(one.asked)-maxAsked+1):],
			proto.Asked{At: now, URL: r.source.URL, Answer: out.Answer})
		h.mayPause(one)
	}
}

func (h *Hunter) tell(one *hunt, r request, out Outcome, warn bool) {
	identifier, url := one.identifier, r.source.URL
	if out.Pause {
		h.Log.Info("a git server is left alone for a while: it is asked too often", "url", url, "for",
			min(max(out.RetryAfter, pauseTime), maxPause))
	}
	switch {
	case out.Failed == "" || out.Answer == "":
		h.Log.Debug("hunt: URL asked", "identifier", identifier, "url", url, "answer", out.Answer)
		return
	case out.Failed == netguard.CauseDNS || out.Failed == netguard.CauseTLS:
		h.Log.Warn("a git server is left alone: its name or its TLS is broken", "url", url, "for", brokenTime)
	}
	level := slog.LevelDebug
	if warn {
		level = slog.LevelWarn
	}
	h.Log.Log(context.Background(), level, "fetch failed", "identifier", identifier, "url", url, "reason", out.Answer,
		"attempt", one.attempts+1, "again_in", h.backoff(one))
}

// mayPause has it looked at whether an attempt has nothing left to ask, when all has begun that
// can.
func (h *Hunter) mayPause(one *hunt) {
	if !one.checked {
		one.checked = true
		h.paused = append(h.paused, one)
	}
	h.triggered()
}

// pause ends an attempt that can ask nothing more at the moment: the next one follows after the
// back-off, also while requests wait for busy hosts. Where all of them wait, it follows when one of
// these hosts has had its turn.
func (h *Hunter) pause(one *hunt, now time.Time) {
	if h.hunts[one.identifier] != one {
		return
	}
	for _, s := range one.searches {
		if s.isBusy() {
			return
		}
	}
	ended := one.open
	one.open = false
	switch {
	case ended && !one.asks && one.pending > 0:
		one.next = time.Time{}
	case ended, one.next.IsZero() && one.asks:
		one.next = now.Add(h.backoff(one))
		one.attempts++
		h.Log.Debug("hunt: back-off", "identifier", one.identifier, "attempt", one.attempts, "next", one.next.Sub(now))
	}
	if !one.tried && !one.left && one.pending == 0 && one.attempts > 0 {
		one.tried = true
		h.Look(one.identifier, "", now) // what was overdue and waited for this attempt goes
	}
	if !one.next.IsZero() {
		h.Look(one.identifier, "", one.next)
	}
}

// backoff is the pause after the attempts so far and one more: 20 s, 40 s, 80 s, then 120 s each.
func (h *Hunter) backoff(one *hunt) time.Duration {
	if one.rare {
		return rarely
	}
	return backoff.After(one.attempts+1, h.Base, h.Max)
}
