package hunt

import (
	"cmp"
	"log/slog"
	"maps"
	"net/url"
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
	// warnEvery is how often the log warns of a host that keeps failing by one cause.
	warnEvery = 24 * time.Hour
	// quarter is the part of all requests at once that one party may have.
	quarter = 4
	// manyParties is how many are kept before those are forgotten that had no request for memory,
	// broken hosts too.
	manyParties = 4 * 4096
	memory      = 10 * time.Minute
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

func (l Limits) of(host string) Limit { return cmp.Or(l.Hosts[host], l.Default) }

// HostOf is the host name in a URL, or its IP address, without the port; in lower case, without a
// dot at the end. It is what limits are counted by.
func HostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}

// request is one server that may be asked, with the names of those for whom it counts.
type request struct {
	url, host string
	server    string // the host
	endpoint  string // its port too: TLS may be broken at one, and anybody may name others
	domain    string // the owner of a registrable domain has any number of hosts below it
	author    string // on whose behalf the server is asked,
	by        string // and the client, where it is known
}

func newRequest(s repostate.Source) request {
	host := HostOf(s.URL)
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil {
		domain = host
	}
	_, rest, _ := strings.Cut(s.URL, "://")
	endpoint, _, _ := strings.Cut(rest, "/")
	return request{url: s.URL, host: host, server: "server " + host, endpoint: "endpoint " + endpoint, domain: "domain " + domain, author: "author " + s.Author, by: "by " + cmp.Or(s.Client, s.Author)}
}

// party is one for whom requests are counted.
type party struct {
	running int
	last    time.Time   // a request of the party began or ended
	recent  []time.Time // requests begun within the window, oldest first
	broken  time.Time   // of a host or an endpoint: up to when it is left alone
	warned  map[netguard.Cause]time.Time
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

// party finds a party. One that had no request is not kept.
func (h *Hunter) party(name string) *party {
	if p := h.parties[name]; p != nil {
		return p
	}
	return &party{warned: map[netguard.Cause]time.Time{}}
}

// isBroken reports whether a server is left alone.
func (h *Hunter) isBroken(r request, now time.Time) bool {
	return now.Before(h.party(r.server).broken) || now.Before(h.party(r.endpoint).broken)
}

// mayAsk reports whether a request may begin: its host is sound and below its limits, and no party
// has a quarter of all requests at once.
func (h *Hunter) mayAsk(r request, part share, now time.Time) bool {
	limit, p := h.Limits.of(r.host), h.party(r.server)
	for len(p.recent) > 0 && now.Sub(p.recent[0]) >= window {
		p.recent = p.recent[1:]
	}
	most := max(1, h.Limits.AtOnce/quarter)
	return h.party(r.domain).running < most && h.party(r.by).running < most && h.party(r.author).running < most &&
		!h.isBroken(r, now) && p.running < part.of(limit.Concurrent) && len(p.recent) < part.of(limit.Rate)
}

// count counts a request for its parties.
func (h *Hunter) count(r request, more int, now time.Time) {
	h.running += more
	for _, name := range []string{r.server, r.endpoint, r.domain, r.by, r.author} {
		p := h.party(name)
		p.running, p.last, h.parties[name] = p.running+more, now, p
	}
}

// begin counts the beginning of a request.
func (h *Hunter) begin(r request, now time.Time) {
	h.count(r, 1, now)
	server := h.party(r.server)
	server.recent = append(server.recent, now)
	if len(h.parties) > manyParties {
		maps.DeleteFunc(h.parties, func(_ string, p *party) bool { return p.running == 0 && now.Sub(p.last) >= memory })
	}
}

// end counts the end of a request; asked is false if the host has heard nothing of it. level is that
// of its failure in the log: a host is a warning once in warnEvery for each cause.
func (h *Hunter) end(r request, failed netguard.Cause, asked bool) (level slog.Level) {
	now := time.Now()
	h.count(r, -1, now)
	server, broken := h.party(r.server), h.party(r.endpoint)
	if !asked {
		server.recent = server.recent[:max(0, len(server.recent)-1)]
	}
	if failed == netguard.CauseDNS {
		broken = server
	}
	if failed == netguard.CauseDNS || failed == netguard.CauseTLS {
		broken.broken = now.Add(brokenTime)
		h.Log.Warn("a git server is left alone: its name or its TLS is broken", "url", r.url, "for", brokenTime)
	}
	if now.Sub(server.warned[failed]) < warnEvery {
		return slog.LevelDebug
	}
	server.warned[failed] = now
	return slog.LevelWarn
}
