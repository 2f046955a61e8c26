// Package hunt decides which git server is asked next for what. Everything is hunted per
// identifier: an attempt asks one server after the other for what each repository misses, and the
// next attempt follows after a back-off. Servers that are busy keep their requests in a queue,
// which goes on whatever the attempts do.
//
// It is polite: so many requests at once and in any minute to one host. It is fair: no host and no
// party (the author of an announcement, or the client that submitted it) has more than a quarter of
// all requests at once, owners who are served come before strangers, and the party that had no
// request for the longest time is next. It is driven by triggers (something is missing, a request
// ends, the minute moves on) and never polls.
package hunt

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril.dev/services/purgatory/repostate"
)

// Outcome is how a fetch ended.
type Outcome int

// Outcomes.
const (
	Failed  Outcome = iota // nothing came
	Brought                // something that was wanted came
	Unasked                // the server was not asked: nothing is missing any more
	Broken                 // the name or the TLS of the server is broken
)

// Options are the rules of a hunter and what it works with.
type Options struct {
	Base, Max time.Duration // back-off between attempts: Base, doubled each time, at most Max
	Limits    Limits
	// Share says among how many workers the limits of servers are divided, and which of them this
	// one is, from 0.
	Share func() (place, workers int)
	// Fetch asks one server for what one repository misses.
	Fetch func(ctx context.Context, identifier, url string, want repostate.Want) Outcome
	// Look asks for a call of Seek for an identifier at a time; something may have come to the
	// owner's repository, if one is named. It must not block.
	Look func(identifier, owner string, at time.Time)
	Log  *slog.Logger
}

// Hunter hunts what Seek tells it. It is safe for concurrent use.
type Hunter struct {
	Options
	mu      sync.Mutex
	ctx     context.Context // of the fetches; nil before Run
	hunts   map[string]*hunt
	hosts   hosts
	parties map[string]*party
	running int // requests under way
	joined  uint64
	timer   *time.Timer // fires when a busy host may be asked again
	fetches sync.WaitGroup
}

// hunt is what is hunted of one identifier.
type hunt struct {
	attempts int
	next     time.Time // of the next attempt
	open     bool      // an attempt is under way
	renewed  bool      // an event came, and Wanted has not been called since
	lanes    map[lane]*search
}

// search is the hunt for what one repository misses.
type search struct {
	identifier string
	want       repostate.Want
	todo       []request
	tried      map[string][]string // URL → the objects it was asked for, in order
	joined     uint64              // where it stands among those that wait
	asking     string              // URL of the request under way
	stale      bool                // something came, and Seek has not been called since
}

// request is one server that may be asked in a search.
type request struct {
	url, host string
	domain    string // whom the server belongs to, a party
	by        string // on whose behalf it is asked, a party
}

// party is one among whom requests are shared out. It is kept while it has requests, and for memory
// after its last one.
type party struct {
	running int
	last    time.Time
}

const (
	// quarter is the part of all requests at once that one host or one party may have.
	quarter = 4
	// memory is how long it counts at least that a party had a request.
	memory = 10 * time.Minute
	// manyParties is how many parties are kept before the idle ones are forgotten.
	manyParties = 4096
)

// New makes a hunter.
func New(o Options) *Hunter {
	return &Hunter{Options: o, hunts: map[string]*hunt{}, hosts: newHosts(o.Limits), parties: map[string]*party{}}
}

// Run hunts until ctx ends. Fetches under way end with it.
func (h *Hunter) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.startAll()
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	h.fetches.Wait()
	return nil
}

// Add notes that a new event waits: the attempts count from one again, and the next one comes
// sooner if delay says so, never later.
func (h *Hunter) Add(identifier string, delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := time.Now().Add(delay)
	one := h.hunts[identifier]
	if one == nil {
		one = &hunt{next: at, lanes: map[lane]*search{}}
		h.hunts[identifier] = one
	}
	// When the attempt that is under way was due says nothing about the next one.
	if one.open || at.Before(one.next) {
		one.next = at
	}
	one.attempts, one.open, one.renewed = 0, false, true
	h.Look(identifier, "", one.next)
}

// Ensure is Add for an identifier that is not hunted for yet.
func (h *Hunter) Ensure(identifier string, delay time.Duration) {
	h.mu.Lock()
	known := h.hunts[identifier] != nil
	h.mu.Unlock()
	if !known {
		h.Add(identifier, delay)
	}
}

// Len is how many identifiers are hunted for.
func (h *Hunter) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.hunts)
}

// InFlight returns the requests under way by host.
func (h *Hunter) InFlight() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hosts.inFlight()
}

// Drop forgets the identifiers for which which is true.
func (h *Hunter) Drop(which func(identifier string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for identifier := range h.hunts {
		if which(identifier) {
			delete(h.hunts, identifier)
		}
	}
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
	all = !one.open && !time.Now().Before(one.next)
	return all || len(one.lanes) > 0, all
}

// Exhausted reports whether an attempt was made for an identifier and has nothing left to ask.
func (h *Hunter) Exhausted(identifier string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hunts[identifier]
	if one == nil || one.attempts == 0 {
		return one == nil
	}
	for _, s := range one.lanes {
		if s.asking != "" || s.stale || len(s.todo) > 0 {
			return false
		}
	}
	return true
}

// Remind asks again for the call of Seek for the next attempt.
func (h *Hunter) Remind(identifier string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.hunts[identifier]; one != nil && !one.open {
		h.Look(identifier, "", one.next)
	}
}

// Seek tells what repositories of an identifier miss now and where that may be; of says for whose
// repositories that is told. all: for all of them. Then the hunt ends if nothing is missing, and an
// attempt begins if it is time for one.
func (h *Hunter) Seek(identifier string, wants []repostate.Want, sources []repostate.Source, of func(owner string) bool, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hunts[identifier]
	if one == nil {
		return
	}
	one.keep(wants, of)
	switch {
	case all && len(wants) == 0:
		if !one.renewed {
			delete(h.hunts, identifier)
		}
		return
	case all && !one.open && !time.Now().Before(one.next):
		one.open = true
		h.begin(identifier, one, wants, sources)
	case !all && len(one.lanes) == 0 && (one.open || one.attempts > 0):
		// Nothing is missing any more of what the attempts were about: all of it is looked at.
		one.open, one.next = false, time.Now()
		h.Look(identifier, "", one.next)
		return
	}
	for _, s := range one.lanes {
		h.start(s)
	}
	h.pause(identifier, one)
	h.wakeLater()
}

// keep drops the searches for what is not missing any more, and lets the others go on.
func (one *hunt) keep(wants []repostate.Want, of func(owner string) bool) {
	still := map[lane]repostate.Want{}
	for _, w := range wants {
		still[laneOf(w)] = w
	}
	for at, s := range one.lanes {
		if !of(at.owner) {
			continue
		}
		if w, is := still[at]; is {
			s.want, s.stale = w, false
		} else {
			s.todo = nil
			delete(one.lanes, at)
		}
	}
}

// begin gives the searches of a hunt the requests of an attempt. A host that has requests left from
// the attempts before is asked for the same again only when all of these were made.
func (h *Hunter) begin(identifier string, one *hunt, wants []repostate.Want, sources []repostate.Source) {
	left := map[lane]map[string]bool{}
	for _, w := range wants {
		at := laneOf(w)
		if one.lanes[at] == nil {
			h.joined++
			one.lanes[at] = &search{identifier: identifier, want: w, tried: map[string][]string{}, joined: h.joined}
		}
		left[at] = one.lanes[at].empty()
	}
	now := time.Now()
	for at, r := range requests(wants, sources) {
		s := one.lanes[at]
		if !h.hosts.broken(r.host, now) && (left[at][r.url] || !s.asked(r.url)) {
			s.todo = append(s.todo, r)
		}
	}
}

// empty takes the requests out of a search, returns their URLs, and forgets what was tried at hosts
// that have none left.
func (s *search) empty() (urls map[string]bool) {
	urls, hosts := map[string]bool{}, map[string]bool{}
	for _, r := range s.todo {
		urls[r.url], hosts[r.host] = true, true
	}
	for url := range s.tried {
		if url != s.asking && !hosts[HostOf(url)] {
			delete(s.tried, url)
		}
	}
	s.todo = nil
	return urls
}

// asked reports whether a URL was tried for all that is missing.
func (s *search) asked(url string) bool {
	objects, tried := s.tried[url]
	return tried && !slices.ContainsFunc(s.want.Objects, func(id string) bool {
		_, found := slices.BinarySearch(objects, id)
		return !found
	})
}

// start makes the first request of a search whose host and party are free. h.mu is held.
func (h *Hunter) start(s *search) bool {
	if h.ctx == nil || h.ctx.Err() != nil || h.running >= h.Limits.AtOnce {
		return false
	}
	i, now := h.startable(s)
	if i < 0 {
		return false
	}
	r := s.todo[i]
	s.todo = append(s.todo[:i:i], s.todo[i+1:]...)
	s.tried[r.url], s.asking = s.want.Objects, r.url
	h.joined++
	s.joined = h.joined
	h.running++
	h.hosts.begin(r.host, now)
	h.count(r, 1, now)
	want := s.want
	h.fetches.Go(func() {
		outcome := h.Fetch(h.ctx, s.identifier, r.url, want)
		h.ended(s, r, now, outcome)
	})
	return true
}

// startable finds the first request of a search that may be made now, -1 if there is none.
func (h *Hunter) startable(s *search) (at int, now time.Time) {
	if s.asking != "" || s.stale || len(s.todo) == 0 {
		return -1, now
	}
	now = time.Now()
	most := max(1, h.Limits.AtOnce/quarter)
	share := h.shareNow(now)
	for i, r := range s.todo {
		if h.below(r.by, most) && h.below(r.domain, most) && h.hosts.free(r.host, share, now) {
			return i, now
		}
	}
	return -1, now
}

func (h *Hunter) below(name string, most int) bool {
	one := h.parties[name]
	return one == nil || one.running < most
}

func (h *Hunter) shareNow(now time.Time) share {
	place, workers := h.Share()
	return share{place: place, workers: workers, minute: now.Unix() / int64(window/time.Second)}
}

// ended takes note of the end of a request.
func (h *Hunter) ended(s *search, r request, began time.Time, outcome Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.running--
	h.hosts.end(r.host, began, outcome == Unasked)
	h.count(r, -1, now)
	if outcome == Broken && h.hosts.breaks(r.host, now) {
		h.Log.Warn("a git server is left alone: its name or its TLS is broken", "host", r.host, "for", brokenTime)
	}
	// What came, by this fetch or another, is looked at before the search goes on.
	s.asking = ""
	if s.stale = outcome == Brought || outcome == Unasked; s.stale {
		h.Look(s.identifier, s.want.Owner, now)
	}
	h.startAll()
	if one := h.hunts[s.identifier]; one != nil {
		h.pause(s.identifier, one)
	}
}

// pause ends an attempt that can ask nothing more at the moment: the next one follows after the
// back-off, whatever waits for busy hosts.
func (h *Hunter) pause(identifier string, one *hunt) {
	if !one.open || h.ctx == nil {
		return
	}
	for _, s := range one.lanes {
		if s.asking != "" || s.stale {
			return
		}
	}
	one.open = false
	one.attempts++
	one.next = time.Now().Add(h.backoff(one.attempts))
	h.Look(identifier, "", one.next)
}

// backoff is the wait after so many unsuccessful attempts: 20 s, 40 s, 80 s, then 120 s each.
func (h *Hunter) backoff(attempts int) time.Duration {
	wait := h.Base
	for range attempts - 1 {
		if wait *= 2; wait >= h.Max {
			return h.Max
		}
	}
	return min(wait, h.Max)
}

// startAll makes every request that may be made now, those first that stand first. h.mu is held.
func (h *Hunter) startAll() {
	for h.ctx != nil && h.ctx.Err() == nil && h.running < h.Limits.AtOnce {
		var best *search
		var rank rank
		for _, one := range h.hunts {
			for _, s := range one.lanes {
				i, _ := h.startable(s)
				if i < 0 {
					continue
				}
				if r := h.rankOf(s, s.todo[i]); best == nil || r.before(rank) {
					best, rank = s, r
				}
			}
		}
		if best == nil || !h.start(best) {
			break
		}
	}
	h.wakeLater()
}

// rank is the place of a request among those that may be made.
type rank struct {
	stranger   bool      // nothing of the payer is served
	last, mine time.Time // the last request of its party or its domain, and of its party
	joined     uint64
}

func (h *Hunter) rankOf(s *search, r request) rank {
	place := rank{stranger: !s.want.Served, joined: s.joined}
	if p := h.parties[r.by]; p != nil {
		place.last, place.mine = p.last, p.last
	}
	if p := h.parties[r.domain]; p != nil && p.last.After(place.last) {
		place.last = p.last
	}
	return place
}

func (r rank) before(o rank) bool {
	if r.stranger != o.stranger {
		return o.stranger
	}
	return cmp.Or(r.last.Compare(o.last), r.mine.Compare(o.mine), cmp.Compare(r.joined, o.joined)) < 0
}

// wakeLater sets the timer for the time when a busy host may be asked again. h.mu is held.
func (h *Hunter) wakeLater() {
	if h.timer != nil {
		h.timer.Stop()
	}
	now := time.Now()
	at := h.hosts.next(now)
	if part := h.shareNow(now); part.workers > 1 && len(h.hunts) > 0 {
		if turn := now.Truncate(window).Add(window); at.IsZero() || turn.Before(at) {
			at = turn
		}
	}
	if at.IsZero() || h.ctx == nil || h.ctx.Err() != nil {
		return
	}
	h.timer = time.AfterFunc(time.Until(at), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.startAll()
	})
}

// count counts a request that begins (1) or ends (-1) for its parties, and forgets idle parties
// when there are many.
func (h *Hunter) count(r request, by int, now time.Time) {
	for _, name := range []string{r.by, r.domain} {
		if h.parties[name] == nil {
			h.parties[name] = &party{}
		}
		h.parties[name].running += by
		h.parties[name].last = now
	}
	if len(h.parties) > manyParties {
		maps.DeleteFunc(h.parties, func(_ string, p *party) bool { return p.running == 0 && now.Sub(p.last) >= memory })
	}
}
