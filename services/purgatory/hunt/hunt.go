// Package hunt decides which git server is asked next for what. Everything is hunted per
// identifier: an attempt asks one server after the other for what each repository misses, and the
// next attempt follows after a back-off. Servers that are busy keep their requests in a queue,
// which goes on beside the attempts.
//
// It is polite: so many requests at once and in any minute to one host. It is fair: no domain, and
// no party on whose behalf servers are asked (the author of an announcement, and the client that
// submitted it), has more than a quarter of all requests at once. Owners who are served come before
// strangers. The party that had no request for the longest time is next. It is driven by triggers
// (something is missing, a request ends, the minute moves on) and never polls.
package hunt

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
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
)

// Options are the rules of a hunter and what it works with.
type Options struct {
	Base, Max time.Duration // back-off between attempts: Base, doubled each time, at most Max
	Limits    Limits
	// Share says among how many workers the limits of servers are divided, and which of them this
	// one is, from 0.
	Share func() (place, workers int)
	// Fetch asks one server for what one repository misses. failed is why nothing came that was
	// wanted; "": something did, or nothing was missing any more. answer is for people; "": this
	// worker did not let the server answer.
	Fetch func(ctx context.Context, identifier, url string, want repostate.Want) (failed netguard.Cause, answer string)
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
	parties map[string]*party
	running int // requests under way
	joined  uint64
	timer   *time.Timer // calls start when nothing else has for a window: hosts may be asked again
	fetches sync.WaitGroup
}

// hunt is what is hunted of one identifier.
type hunt struct {
	attempts int
	next     time.Time // of the next attempt
	open     bool      // an attempt is under way
	renewed  bool      // an event came, and Wanted has not been called since
	lanes    map[lane]*search
	asked    []proto.Asked // the last answers
}

// lane is what is asked for one request after the other: what one repository misses, for one who
// pays for it.
type lane struct{ owner, payer string }

func laneOf(w repostate.Want) lane { return lane{w.Owner, w.Payer} }

// search is the hunt for what one repository misses.
type search struct {
	identifier string
	want       repostate.Want
	todo       []request
	joined     uint64 // where it stands among those that wait
	asking     string // URL of the request under way
	stale      bool   // something came, and Seek has not been called since
}

func (s *search) isBusy() bool { return s.asking != "" || s.stale }

// New makes a hunter.
func New(o Options) *Hunter {
	h := &Hunter{Options: o, hunts: map[string]*hunt{}, parties: map[string]*party{}}
	h.timer = time.AfterFunc(window, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.timer.Reset(window)
		h.start(h.hunts)
	})
	return h
}

// Run hunts until ctx ends. Fetches under way end with it.
func (h *Hunter) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.start(h.hunts)
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	clear(h.hunts) // nothing starts any more
	h.timer.Stop()
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
	if one.open { // the next attempt would follow after the back-off at the earliest
		one.next = time.Now().Add(h.backoff(0))
	}
	if at.Before(one.next) {
		one.next = at
	}
	one.attempts, one.open, one.renewed = 0, false, true
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

// State tells when the next attempt for an identifier begins, zero if one is under way or nothing
// is hunted, and whether an attempt was made and has nothing left to ask.
func (h *Hunter) State(identifier string) (next time.Time, exhausted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.hunts[identifier]
	if one == nil {
		return time.Time{}, true
	}
	if !one.open {
		next = one.next
	}
	for _, s := range one.lanes {
		if s.isBusy() || len(s.todo) > 0 {
			return next, false
		}
	}
	return next, one.attempts > 0
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
	waits := slices.ContainsFunc(wants, func(w repostate.Want) bool { return w.Waits })
	switch {
	case all && (len(wants) == 0 || !waits && one.attempts >= attemptsInVain):
		if !one.renewed {
			delete(h.hunts, identifier)
		}
		return
	case all && !one.open && !time.Now().Before(one.next):
		one.open = true
		h.attempt(identifier, one, wants, sources)
	case !all && len(one.lanes) == 0 && (one.open || one.attempts > 0):
		// Nothing is missing any more of what the attempts were about: all of it is looked at.
		one.open, one.next = false, time.Now()
		h.Look(identifier, "", one.next)
		return
	}
	h.start(map[string]*hunt{identifier: one}) // what else could begin has begun
	h.pause(identifier, one)
}

// keep drops the searches for what is not missing any more, and lets the others go on.
func (one *hunt) keep(wants []repostate.Want, of func(owner string) bool) {
	still := map[lane]repostate.Want{}
	for _, w := range wants {
		still[laneOf(w)] = w
	}
	for at, s := range one.lanes {
		w, is := still[at]
		switch {
		case !of(at.owner):
		case is:
			s.want, s.stale = w, false
		default:
			delete(one.lanes, at)
		}
	}
}

// attempt gives the searches of a hunt their requests, but for those that they have left from the
// attempts before: first their near URLs, then all others. Where these are too many, it begins
// somewhere among them, so that each gets its turn.
func (h *Hunter) attempt(identifier string, one *hunt, wants []repostate.Want, sources []repostate.Source) {
	most := min(maxURLs, max(1, maxRequests/max(1, len(wants))))
	for _, w := range rotated(wants, maxRequests)[:min(len(wants), maxRequests)] {
		s := one.lanes[laneOf(w)]
		if s == nil {
			h.joined++
			s = &search{identifier: identifier, want: w, joined: h.joined}
			one.lanes[laneOf(w)] = s
		}
		for _, source := range slices.Concat(w.Near, rotated(sources, most)) {
			if len(s.todo) >= most {
				break
			}
			known := source.URL == s.asking || slices.ContainsFunc(s.todo, func(r request) bool { return r.url == source.URL })
			if r := newRequest(source); !known && !h.isBroken(r, time.Now()) {
				s.todo = append(s.todo, r)
			}
		}
	}
}

// rotated is a list that begins somewhere in its middle, if it is longer than most.
func rotated[T any](list []T, most int) []T {
	if len(list) <= most {
		return list
	}
	at := rand.IntN(len(list))
	return slices.Concat(list[at:], list[:at])
}

// start makes every request of hunts that may be made now, first those of owners who are served,
// then those whose parties had none for the longest time. h.mu is held.
func (h *Hunter) start(hunts map[string]*hunt) {
	place, workers := h.Share()
	for h.ctx != nil && h.ctx.Err() == nil && h.running < h.Limits.AtOnce {
		now := time.Now()
		part := share{place, workers, now.Unix() / int64(window/time.Second)}
		var best *search
		var at int
		for _, one := range hunts {
			for _, s := range one.lanes {
				if s.isBusy() {
					continue
				}
				i := slices.IndexFunc(s.todo, func(r request) bool { return h.mayAsk(r, part, now) })
				if i >= 0 && (best == nil || h.before(s, s.todo[i], best, best.todo[at])) {
					best, at = s, i
				}
			}
		}
		if best == nil {
			break
		}
		h.request(best, at, now)
	}
}

// before reports whether one request of a search comes before that of another.
func (h *Hunter) before(s *search, r request, other *search, o request) bool {
	if s.want.Served != other.want.Served {
		return s.want.Served
	}
	last := func(names ...string) (at int64) {
		for _, name := range names {
			at = max(at, h.party(name).last.UnixMicro())
		}
		return at
	}
	return cmp.Or(cmp.Compare(last(r.by, r.author, r.domain), last(o.by, o.author, o.domain)),
		cmp.Compare(last(r.by, r.author), last(o.by, o.author)), cmp.Compare(s.joined, other.joined)) < 0
}

// request makes a request of a search.
func (h *Hunter) request(s *search, i int, now time.Time) {
	r := s.todo[i]
	s.todo = slices.Delete(s.todo, i, i+1)
	s.asking = r.url
	h.joined++
	s.joined = h.joined
	h.begin(r, now)
	h.timer.Reset(window)
	want := s.want
	h.fetches.Go(func() {
		failed, answer := h.Fetch(h.ctx, s.identifier, r.url, want)
		h.ended(s, r, failed, answer)
	})
}

// ended takes note of the end of a request.
func (h *Hunter) ended(s *search, r request, failed netguard.Cause, answer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	level := h.end(r, failed, answer != "")
	// What came, by this fetch or another, is looked at before the search goes on.
	s.asking = ""
	if s.stale = failed == ""; s.stale {
		h.Look(s.identifier, s.want.Owner, time.Now())
	}
	h.start(h.hunts)
	if one := h.hunts[s.identifier]; one != nil {
		if failed != "" && answer != "" {
			h.Log.Log(h.ctx, level, "fetch failed", "identifier", s.identifier, "url", r.url, "reason", answer, "attempt", one.attempts+1, "again_in", h.backoff(one.attempts))
		}
		told := proto.Asked{At: time.Now(), URL: r.url, Answer: answer}
		one.asked = append(one.asked[max(0, len(one.asked)-maxAsked+1):], told)
		h.pause(s.identifier, one)
	}
}

// pause ends an attempt that can ask nothing more at the moment: the next one follows after the
// back-off, also while requests wait for busy hosts.
func (h *Hunter) pause(identifier string, one *hunt) {
	if !one.open || h.ctx == nil {
		return
	}
	for _, s := range one.lanes {
		if s.isBusy() {
			return
		}
	}
	one.open = false
	one.next = time.Now().Add(h.backoff(one.attempts))
	one.attempts++
	h.Look(identifier, "", one.next)
}

// backoff is the pause after so many attempts and one more: 20 s, 40 s, 80 s, then 120 s each.
func (h *Hunter) backoff(attempts int) time.Duration { return backoff.After(attempts+1, h.Base, h.Max) }
