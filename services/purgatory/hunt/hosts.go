package hunt

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// window is the time that rate limits speak of.
	window = time.Minute
	// brokenTime is how long a host is left alone whose name or TLS is broken.
	brokenTime = 12 * time.Hour
	// pauseTime is how long a host is left alone that says that it is asked too often, or as long as
	// it says, but not longer than maxPause.
	pauseTime = time.Minute
	maxPause  = time.Hour
	// warnEvery is how often the log warns of a host that keeps failing by one cause.
	warnEvery = 24 * time.Hour
	// maxEndpoints bounds how many broken ports of one host are remembered.
	maxEndpoints = 64
	// visit is how many requests to a server count as one: it introduces itself, and gives a pack.
	visit = 2
)

// Limit is what one host is asked at most.
type Limit struct {
	Concurrent int // fetches at once
	Rate       int // fetches in any 60 seconds
}

// Limits are the limits of all hosts.
type Limits struct {
	Default Limit
	Hosts   map[string]Limit // overrides, by HostOf
	AtOnce  int              // fetches at once from all hosts together
}

// HostOf is the host name in a URL, or its IP address, without the port; in lower case, without a
// dot at the end. Limits are counted by host.
func HostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}

// request is a URL that may be asked.
type request struct {
	source   repostate.Source
	host     string
	endpoint string // its port too: TLS may be broken at one, and anybody may name others
}

func newRequest(s repostate.Source) request {
	_, rest, _ := strings.Cut(s.URL, "://")
	endpoint, _, _ := strings.Cut(rest, "/")
	return request{source: s, host: HostOf(s.URL), endpoint: endpoint[strings.LastIndex(endpoint, "@")+1:]}
}

// domainOf is the registrable domain of a host: its owner has any number of hosts below it.
func domainOf(host string) string {
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil {
		return host
	}
	return domain
}

// share is a worker's part of the limits of hosts: they hold for all workers together.
type share struct{ place, workers int }

// of is what the worker has of a limit. Where there are more workers than it allows requests, so
// many at a time as it allows have one, and with every minute others.
func (s share) of(limit int, now time.Time) int {
	minute := int(now.Unix() / int64(window/time.Second))
	switch {
	case s.workers <= 1:
		return limit
	case limit >= s.workers:
		return limit / s.workers
	case (s.place+minute)%s.workers < limit:
		return 1
	}
	return 0
}

// host is a host that is asked.
type host struct {
	name   string
	limit  Limit
	domain *gate
	lines  [classes]line

	running int
	turn    uint64               // of its last request
	inARow  int                  // requests for owners who are served since the last for a stranger
	recent  []time.Time          // requests begun within the window, oldest first
	paused  time.Time            // it said that it is asked too often: up to when it is left alone
	broken  map[string]time.Time // its endpoints, "" for all: up to when they are left alone
	warned  map[netguard.Cause]time.Time

	wakes    time.Time // when it may be asked again
	sleeping int       // its place among those that wait for that
	idle     bool      // it is among those that may be forgotten
}

func (h *host) Before(other *host) bool { return h.wakes.Before(other.wakes) }
func (h *host) Place() *int             { return &h.sleeping }

// isBroken reports whether a request would meet a broken name or broken TLS.
func (h *host) isBroken(r request, now time.Time) bool {
	return now.Before(h.broken[""]) || now.Before(h.broken[r.endpoint])
}

// mayBeAsked reports whether a request may begin now, or when it may at the earliest; zero: when a
// request that runs has ended.
func (h *host) mayBeAsked(part share, now time.Time) (ok bool, at time.Time) {
	for len(h.recent) > 0 && now.Sub(h.recent[0]) >= window {
		h.recent = h.recent[1:]
	}
	atOnce, rate := part.of(h.limit.Concurrent, now), part.of(h.limit.Rate, now)
	switch {
	case now.Before(h.paused):
		return false, h.paused
	case atOnce == 0 || rate == 0:
		return false, now.Truncate(window).Add(window)
	case len(h.recent) >= rate:
		return false, h.recent[len(h.recent)-rate].Add(window)
	}
	return h.running < atOnce, time.Time{}
}

// learn notes how a request ended that took so many exchanges with the server, and whether its
// failure is a warning: once in warnEvery for each cause.
func (h *host) learn(r request, out Outcome, now time.Time) (warn bool) {
	switch {
	case out.Answer == "": // it has heard nothing of it
		h.recent = h.recent[:max(0, len(h.recent)-1)]
		return false
	case out.Pause:
		h.paused = now.Add(min(max(out.RetryAfter, pauseTime), maxPause))
	case out.Failed == netguard.CauseDNS:
		h.breaks("", now)
	case out.Failed == netguard.CauseTLS:
		h.breaks(r.endpoint, now)
	}
	for more := out.Requests; more > visit; more -= visit {
		h.recent = append(h.recent, now)
	}
	if out.Failed == "" || now.Sub(h.warned[out.Failed]) < warnEvery {
		return false
	}
	if h.warned == nil {
		h.warned = map[netguard.Cause]time.Time{}
	}
	h.warned[out.Failed] = now
	return true
}

func (h *host) breaks(endpoint string, now time.Time) {
	if h.broken == nil || len(h.broken) >= maxEndpoints {
		h.broken = map[string]time.Time{}
	}
	h.broken[endpoint] = now.Add(brokenTime)
}

// forgettable reports whether nothing is lost with a host but the memory of its faults.
func (h *host) forgettable(now time.Time) bool {
	recently := slices.ContainsFunc(h.recent, func(at time.Time) bool { return now.Sub(at) < window })
	return h.running == 0 && !recently && cmp.Or(len(h.lines[0].pairs), len(h.lines[1].pairs)) == 0 &&
		!now.Before(h.paused)
}
