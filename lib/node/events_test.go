package node

import "testing"

// TestWhoHasAnIndex: a process keeps one if a service needs it, or if there is nobody to ask.
func TestWhoHasAnIndex(t *testing.T) {
	t.Parallel()
	asks, needs, early := Service{Name: "a", Asks: true}, Service{Name: "b"}, Service{Name: "c", Early: true}
	for name, c := range map[string]struct {
		url      string
		services []Service
		want     bool
	}{
		"asks":                        {"nats://x", []Service{asks}, false},
		"asks, and is observed":       {"nats://x", []Service{early, asks}, false},
		"two ask":                     {"nats://x", []Service{asks, asks}, false},
		"one needs it":                {"nats://x", []Service{asks, needs}, true},
		"needs it":                    {"nats://x", []Service{needs}, true},
		"asks, and embeds the server": {"", []Service{asks}, true},
		"not said":                    {"nats://x", nil, true},
		"not said, and is observed":   {"nats://x", []Service{early}, true},
	} {
		if got := hasIndex(c.url, c.services); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
