package gateway

import (
	"fmt"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nip34"
)

// check says what is wrong with the settings of the front door: setting, value, and what would be right.
func check(s config.Settings) error {
	if _, err := nip34.NormalizeDomain(s.Domain); err != nil {
		return fmt.Errorf("NGIT_DOMAIN is %q: %w; want the public host name, with a port if it is not 80 or 443", s.Domain, err)
	}
	for _, least := range []struct {
		name       string
		value, min int64
	}{
		{"NGIT_MAX_CONNECTIONS", int64(s.MaxConnections), 1},
		{"NGIT_MAX_CONNECTIONS_PER_IP", int64(s.MaxConnectionsPerIP), 1},
		{"NGIT_MAX_SUBSCRIPTIONS", int64(s.MaxSubscriptions), 1},
		{"NGIT_MAX_FILTERS", int64(s.Front.MaxFilters), 1},
		{"NGIT_MAX_FILTER_VALUES", int64(s.MaxFilterValues), 1},
		{"NGIT_MAX_MESSAGE_BYTES", s.MaxMessageBytes, 1024},
		{"NGIT_MAX_LIMIT", int64(s.MaxLimit), 1},
		{"NGIT_DEFAULT_LIMIT", int64(s.DefaultLimit), 1},
		{"NGIT_EVENTS_PER_MINUTE", int64(s.EventsPerMinute), 1},
		{"NGIT_SEND_QUEUE", int64(s.SendQueue), 1},
		{"NGIT_MAX_FUTURE_SECS", int64(s.MaxFutureSeconds), 0},
	} {
		if least.value < least.min {
			return fmt.Errorf("%s is %d: want %d or more", least.name, least.value, least.min)
		}
	}
	if s.DefaultLimit > s.MaxLimit {
		return fmt.Errorf("NGIT_DEFAULT_LIMIT is %d: want no more than NGIT_MAX_LIMIT, which is %d", s.DefaultLimit, s.MaxLimit)
	}
	if s.EventTimeout <= 0 {
		return fmt.Errorf("NGIT_EVENT_TIMEOUT is %s: want a time such as 10s", s.EventTimeout)
	}
	return nil
}
