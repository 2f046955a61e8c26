package hunt

import (
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"
)

const (
	// window is the time that rate limits speak of.
	window = time.Minute
	// brokenTime is how long a host is left alone whose name or TLS is broken.
	brokenTime = 12 * time.Hour
	// manyBroken bounds the broken hosts that are remembered.
	manyBroken = 10_000
)

// Limit is what one host is asked at most.
type Limit struct {
	Concurrent int // requests at once
	Rate       int // requests in any 60 seconds
}

// Limits are the limits of all hosts.
type Limits struct {
	Default Limit
	Hosts   map[string]Limit // overrides, by HostOf
	AtOnce  int              // requests at once to all hosts together
}

// HostOf is the host name in a URL, or its IP address, without the port; in lower case, without a
// dot at the end. It is what limits are counted by.
func HostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}

// domainOf is the party to which a host belongs: the owner of a registrable domain has any number
// of names below it.
func domainOf(host string) string {
	if domain, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return domain
	}
	return host
}

// share is a worker's part of the limits of hosts: they hold for all workers together.
type share struct {
	place, workers int
	minute         int64
}

// of is what the worker has of a limit. Where there are more workers than it allows requests, so
// many at a time as it allows have one, and with every minute others.
func (s share) of(limit int) int {
	switch {
	case s.workers <= 1:
		return limit
	case limit >= s.workers:
		return limit / s.workers
	case (s.place+int(s.minute))%s.workers < limit:
		return 1
	}
	return 0
}

// hosts are the hosts that were asked in the last minute, and those that are broken.
type hosts struct {
	limits Limits
	by     map[string]*host
	bad    map[string]time.Time // broken host → until when it is left alone
}

type host struct {
	inFlight int
	recent   []time.Time // requests begun within the window, oldest first
}

func newHosts(l Limits) hosts {
	return hosts{limits: l, by: map[string]*host{}, bad: map[string]time.Time{}}
}

func (hs *hosts) limit(name string) Limit {
	if l, ok := hs.limits.Hosts[name]; ok {
		return l
	}
	return hs.limits.Default
}

// free reports whether one more request to a host may begin.
func (hs *hosts) free(name string, part share, now time.Time) bool {
	if hs.broken(name, now) {
		return false
	}
	limit, one := hs.limit(name), hs.by[name]
	if one == nil {
		one = &host{}
	}
	one.expire(now)
	return one.inFlight < part.of(limit.Concurrent) && len(one.recent) < part.of(limit.Rate)
}

func (one *host) expire(now time.Time) {
	for len(one.recent) > 0 && now.Sub(one.recent[0]) >= window {
		one.recent = one.recent[1:]
	}
}

// begin counts a request.
func (hs *hosts) begin(name string, now time.Time) {
	one := hs.by[name]
	if one == nil {
		one = &host{}
		hs.by[name] = one
	}
	one.inFlight++
	one.recent = append(one.recent, now)
}

// end counts the end of a request. One that was not made after all does not count for the rate.
func (hs *hosts) end(name string, began time.Time, unasked bool) {
	one := hs.by[name]
	one.inFlight--
	for i := range one.recent {
		if unasked && one.recent[i].Equal(began) {
			one.recent = append(one.recent[:i:i], one.recent[i+1:]...)
			break
		}
	}
}

// next is when a host that is asked to its limit may be asked again, or when it may be this
// worker's turn; zero: no request has to wait for that. It forgets hosts of which nothing is left.
func (hs *hosts) next(now time.Time) (at time.Time) {
	for name, one := range hs.by {
		one.expire(now)
		switch {
		case len(one.recent) == 0 && one.inFlight == 0:
			delete(hs.by, name)
		case len(one.recent) > 0:
			if free := one.recent[0].Add(window); at.IsZero() || free.Before(at) {
				at = free
			}
		}
	}
	return at
}

func (hs *hosts) inFlight() map[string]int {
	n := map[string]int{}
	for name, one := range hs.by {
		if one.inFlight > 0 {
			n[name] = one.inFlight
		}
	}
	return n
}

// breaks notes that a host is broken, and reports whether that is new.
func (hs *hosts) breaks(name string, now time.Time) bool {
	if hs.broken(name, now) {
		return false
	}
	if len(hs.bad) >= manyBroken {
		clear(hs.bad)
	}
	hs.bad[name] = now.Add(brokenTime)
	return true
}

func (hs *hosts) broken(name string, now time.Time) bool {
	until, bad := hs.bad[name]
	if bad && !now.Before(until) {
		delete(hs.bad, name)
		return false
	}
	return bad
}
