package relay

import (
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/testonly"
)

// Limits are what one client, and all together, may have and do at the front door.
type Limits struct {
	config.Front // by the operator's settings
	Bounds
}

// Bounds are the limits that no operator sets. "IP" is an IPv4 address or the /64 of an IPv6
// address.
type Bounds struct {
	MaxOpenFiltersPerIP int           // of subscriptions, and sessions of NIP-77
	MaxFilters          int           // of a subscription
	MaxFilterValues     int           // of a filter
	MaxFilterSteps      int           // looked at in the index for a filter
	ClientBytes         int64         // kept for all clients: filters, sessions, events that wait
	ClientBytesPerIP    int64         // and for one address
	MaxReconciledEvents int           // of a session of NIP-77
	MaxMessageBytes     int64         // of a message of a client
	MessageTime         time.Duration // that a message may take to come
	MaxLimit            int           // of a filter, unless NGIT_RELAY_FILTER_LIMIT says otherwise
	DefaultLimit        int           // of a filter that names none, unless that setting says otherwise
	EventTimeout        time.Duration // until a client hears that there was no decision on its event

	OtherConnections      int           // for git and pages, beside WebSockets
	OtherConnectionsPerIP int           // of them
	GitRequestsPerIP      int           // at once
	GitRequestsPerMinute  int           // of an address
	PagesPerMinute        int           // of an address
	GitWait               time.Duration // of a request of git for a worker, while the repository moves
	AnswerStall           time.Duration // for each config.AnswerChunk of an answer
}

// DefaultBounds are those of a running service.
var DefaultBounds = Bounds{
	MaxOpenFiltersPerIP: 8000, MaxFilters: 20, MaxFilterValues: 8192, MaxFilterSteps: 2_000_000,
	ClientBytes: 512 << 20, ClientBytesPerIP: 64 << 20, MaxReconciledEvents: 250_000,
	MaxMessageBytes: 1 << 20, MessageTime: time.Minute, MaxLimit: 5000, DefaultLimit: 500,
	EventTimeout: testonly.Duration("EVENT_TIMEOUT", 10*time.Second),

	OtherConnections: 4096, OtherConnectionsPerIP: 256, GitRequestsPerIP: 128,
	GitRequestsPerMinute: testonly.Int("GIT_REQUESTS_PER_MINUTE_PER_IP", 600), PagesPerMinute: 600,
	GitWait: gitquery.HandOverWait, AnswerStall: 2 * time.Minute,
}

// FilterLimits are the limit of a filter that names none, and the largest limit of a filter.
func (l Limits) FilterLimits() (byDefault, largest int) {
	if l.FilterLimit > 0 {
		return l.FilterLimit, l.FilterLimit
	}
	return l.DefaultLimit, l.MaxLimit
}
