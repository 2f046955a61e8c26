package bus_test

import (
	"strings"
	"testing"

	"tendril.dev/lib/bus"
)

// TestRedacted: neither passwords nor tokens are shown, nor anything of a URL that cannot be read.
func TestRedacted(t *testing.T) {
	t.Parallel()
	for urls, want := range map[string]string{
		"nats://u:secret@a:4222, nats://b": "nats://xxxxx@a:4222, nats://b",
		"tls://secret@a:4222":              "tls://xxxxx@a:4222",
		"nats://u:secret@a:%zz":            "(a URL that cannot be read)",
		"":                                 "",
	} {
		if got := bus.Redacted(urls); got != want {
			t.Errorf("%q: %q, want %q", urls, got, want)
		}
	}
}

func TestConnectErrorKeepsThePassword(t *testing.T) {
	t.Parallel()
	_, err := bus.Open(t.Context(), bus.Options{URL: "nats://user:secret@127.0.0.1:1"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}
