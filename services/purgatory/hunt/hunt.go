// Package hunt decides which git server is asked next for what. Everything is hunted per
// identifier: an attempt asks one server after the other for what each repository misses, and the
// next attempt follows after a back-off. Servers that are busy keep their requests in a queue,
// which goes on beside the attempts.
//
// It is polite: so many requests at once and in any minute to one host. It is fair: no domain, and
// no party on whose behalf servers are asked (the author of an announcement, or the client that
// submitted it), has more than a quarter of all requests at once. Owners who are served come before
// strangers. The party that had no request for the longest time is next. It is driven by triggers
// (something is missing, a request ends, the minute moves on) and never polls.
package hunt

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// maxRequests bounds the requests of one attempt. Anybody may announce an identifier, with as
	// many URLs as will fit, so that there can be more of them than are ever asked.
	maxRequests = 1000
	// attemptsInVain is after how many a hunt ends that no held event waits for: about 30 minutes.
	attemptsInVain = 17
)

// Outcome is how a fetch ended.
type Outcome int

// Outcomes.
const (
	Failed  Outcome = iota // nothing came
	Brought                // something that was wanted came, or nothing was missing any more
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
	parties map[string]*party
	running int // requests under way
	joined  uint64
	turning bool // a timer waits for the next minute
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
	asking     string // host of the request under way
	stale      bool   // something came, and Seek has not been called since
}

// New makes a hunter.
func New(o Options) *Hunter {
	return &Hunter{Options: o, hunts: map[string]*hunt{}, parties: map[string]*party{}}
}

// Run hunts until ctx ends. Fetches under way end with it.
func (h *Hunter) Run(ctx context.Context) error {
	h.mu.Lock()
	h.ctx = ctx
	h.startAll()
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	clear(h.hunts) // nothing starts any more
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
		if s.asking != "" || s.stale || len(s.todo) > 0 {
			return next, false
		}
	}
	return next, one.attempts > 0
}

// maxAsked is how many answers of git servers are remembered for an identifier.
const maxAsked = 20

// Note remembers what a git server has answered, while an identifier is hunted for.
func (h *Hunter) Note(identifier string, answer proto.Asked) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if one := h.hunts[identifier]; one != nil {
		one.asked = append(one.asked[max(0, len(one.asked)-maxAsked+1):], answer)
	}
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
	h.startSome(maps.Values(one.lanes))
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

// attempt gives the searches of a hunt their requests. A host that has requests left from the
// attempts before gets no others until all of these were made.
func (h *Hunter) attempt(identifier string, one *hunt, wants []repostate.Want, sources []repostate.Source) {
	left := map[lane]map[string]bool{} // hosts
	for _, w := range wants {
		at := laneOf(w)
		if one.lanes[at] == nil {
			h.joined++
			one.lanes[at] = &search{identifier: identifier, want: w, joined: h.joined}
		}
		left[at] = map[string]bool{one.lanes[at].asking: true}
		for _, r := range one.lanes[at].todo {
			left[at][r.host] = true
		}
	}
	for at, source := range requests(wants, sources) {
		if r := newRequest(source); !left[at][r.host] && !h.isBroken(r) {
			one.lanes[at].todo = append(one.lanes[at].todo, r)
		}
	}
}

// requests returns what may be asked, each once: first every want's near URLs, then every other URL
// for every want. Where that is more than an attempt may make, it begins with any of the wants and
// any of the URLs, so that each gets its turn.
func requests(wants []repostate.Want, sources []repostate.Source) iter.Seq2[lane, repostate.Source] {
	type key struct {
		lane
		url string
	}
	if len(wants)*len(sources) > maxRequests {
		wants, sources = rotated(wants), rotated(sources)
		for i, w := range wants {
			wants[i].Near = rotated(w.Near)
		}
	}
	return func(yield func(lane, repostate.Source) bool) {
		made := map[key]bool{}
		ask := func(w repostate.Want, s repostate.Source) bool {
			at := key{laneOf(w), s.URL}
			if made[at] {
				return true
			}
			made[at] = true
			return len(made) <= maxRequests && yield(at.lane, s)
		}
		for _, w := range wants {
			for _, s := range w.Near {
				if !ask(w, s) {
					return
				}
			}
		}
		for _, s := range sources {
			for _, w := range wants {
				if !ask(w, s) {
					return
				}
			}
		}
	}
}

// rotated is a list that begins somewhere in its middle.
func rotated[T any](list []T) []T {
	if len(list) == 0 {
		return list
	}
	at := rand.IntN(len(list))
	return slices.Concat(list[at:], list[:at])
}

// startAll makes every request that may be made now.
func (h *Hunter) startAll() {
	h.startSome(func(yield func(*search) bool) {
		for _, one := range h.hunts {
			for _, s := range one.lanes {
				if !yield(s) {
					return
				}
			}
		}
	})
}

// startSome makes requests of some searches, first those of owners who are served, then those whose
// parties had none for the longest time. h.mu is held.
func (h *Hunter) startSome(searches iter.Seq[*search]) {
	place, workers := h.Share()
	for h.ctx != nil && h.ctx.Err() == nil && h.running < h.Limits.AtOnce {
		now := time.Now()
		part := share{place, workers, now.Unix() / int64(window/time.Second)}
		var best *search
		var at int
		for s := range searches {
			if i := h.startable(s, part, now); i >= 0 && (best == nil || h.before(s, s.todo[i], best, best.todo[at])) {
				best, at = s, i
			}
		}
		if best == nil {
			break
		}
		h.start(best, at, now)
	}
	if workers > 1 && len(h.hunts) > 0 && !h.turning {
		h.turning = true
		h.startAfter(time.Until(time.Now().Truncate(window).Add(window)), func() { h.turning = false })
	}
}

// startable finds the first request of a search that may be made, -1 if there is none.
func (h *Hunter) startable(s *search, part share, now time.Time) int {
	if s.asking != "" || s.stale {
		return -1
	}
	return slices.IndexFunc(s.todo, func(r request) bool { return h.mayAsk(r, part, now) })
}

// before reports whether one request of a search comes before that of another.
func (h *Hunter) before(s *search, r request, other *search, o request) bool {
	if s.want.Served != other.want.Served {
		return s.want.Served
	}
	mine, others := h.last(r.by), h.last(o.by)
	return cmp.Or(later(mine, h.last(r.domain)).Compare(later(others, h.last(o.domain))), mine.Compare(others), cmp.Compare(s.joined, other.joined)) < 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// start makes a request of a search.
func (h *Hunter) start(s *search, i int, now time.Time) {
	r := s.todo[i]
	s.todo = append(s.todo[:i:i], s.todo[i+1:]...)
	s.asking = r.host
	h.joined++
	s.joined = h.joined
	h.begin(r, now)
	h.startAfter(window, nil) // the host may be asked again
	want := s.want
	h.fetches.Go(func() {
		outcome := h.Fetch(h.ctx, s.identifier, r.url, want)
		h.ended(s, r, outcome)
	})
}

// startAfter calls startAll after a time.
func (h *Hunter) startAfter(wait time.Duration, before func()) {
	time.AfterFunc(wait, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if before != nil {
			before()
		}
		h.startAll()
	})
}

// ended takes note of the end of a request.
func (h *Hunter) ended(s *search, r request, outcome Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(r, outcome)
	// What came, by this fetch or another, is looked at before the search goes on.
	s.asking = ""
	if s.stale = outcome == Brought; s.stale {
		h.Look(s.identifier, s.want.Owner, time.Now())
	}
	h.startAll()
	if one := h.hunts[s.identifier]; one != nil {
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
	return min(h.Base<<min(attempts-1, 16), h.Max)
}
