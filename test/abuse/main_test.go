// Package abuse does to a running Tendril what hostile strangers do, each attack beside a normal
// user who must not notice it (docs/security.md has the limits). Everything runs against the built
// program with its default limits, unless a test says otherwise.
package abuse

import (
	"maps"
	"strconv"
	"testing"

	"tendril.dev/test/world"
)

func TestMain(m *testing.M) { world.Main(m) }

// eventsOfAddress is how many events a minute one address may send.
const eventsOfAddress = 240

// start runs Tendril with the limits that it has by default, behind a proxy: every client says by
// X-Forwarded-For which address it comes from, so that one machine can be many strangers.
func start(t *testing.T, more map[string]string) *world.Tendril {
	t.Helper()
	settings := map[string]string{
		"NGIT_TRUSTED_PROXIES":                        "127.0.0.0/8,::1",
		"NGIT_EVENTS_PER_MINUTE":                      "60",
		"NGIT_EVENTS_PER_MINUTE_PER_IP":               strconv.Itoa(eventsOfAddress),
		"TENDRIL_TEST_GIT_REQUESTS_PER_MINUTE_PER_IP": "600",
		"NGIT_SYNC_DOMAIN_RATE_LIMIT":                 "30",
	}
	maps.Copy(settings, more)
	return world.Start(t, settings)
}
