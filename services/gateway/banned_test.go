package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/bans"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// TestABlockedAddress: its connections end and its requests are refused, with the reason, until the
// ban is lifted. No other client notices, and the operator may be at that address.
func TestABlockedAddress(t *testing.T) {
	t.Parallel()
	sys := start(t, "--trusted-proxies=127.0.0.0/8")
	blocked, other := sys.from(t, "192.0.2.9"), sys.from(t, "192.0.2.10")
	for _, c := range []*client{blocked, other} {
		c.say(`["REQ","a",{"kinds":[1]}]`)
		c.want(`["EOSE"`)
	}
	get := func(method, path, from, kind string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+sys.addr+path, strings.NewReader("{}"))
		fixture.Must(t, err)
		req.Header.Set("X-Forwarded-For", from)
		req.Header.Set("Content-Type", kind)
		resp, err := http.DefaultClient.Do(req)
		fixture.Must(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		fixture.Must(t, err)
		return resp.StatusCode, string(body)
	}
	subject, err := bans.OfAddress("192.0.2.9")
	fixture.Must(t, err, bans.Put(t.Context(), sys.Bus.JS, subject, proto.Ban{Reason: "a scraper"}))
	if status := blocked.closed(); status != websocket.StatusPolicyViolation {
		t.Errorf("the connection ends with %d", status)
	}
	for _, path := range []string{"/", "/healthz", "/x/y.git/info/refs?service=git-upload-pack"} {
		if status, body := get("GET", path, "192.0.2.9", ""); status != http.StatusForbidden || body != "blocked: a scraper\n" {
			t.Errorf("%s is answered %d %s", path, status, body)
		}
	}
	if status, _ := get("POST", "/", "192.0.2.9", managementType); status == http.StatusForbidden {
		t.Error("the operator is shut out")
	}
	if status, _ := get("GET", "/", "192.0.2.10", ""); status != http.StatusOK {
		t.Errorf("another address is answered %d", status)
	}
	other.say(`["REQ","b",{"kinds":[1]}]`)
	other.want(`["EOSE"`)
	fixture.Must(t, bans.Lift(t.Context(), sys.Bus.JS, subject, "an operator"))
	fixture.Await(t, "the address is served again", func() bool {
		status, _ := get("GET", "/", "192.0.2.9", "")
		return status == http.StatusOK
	})
}
