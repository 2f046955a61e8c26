package gateway

import (
	"fmt"
	"strings"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip42"

	"tendril.dev/lib/nostr"
)

// challenged hears the relay's challenge.
func (c *client) challenged() string {
	c.t.Helper()
	got := c.want(`["AUTH","`)
	return strings.TrimSuffix(strings.TrimPrefix(got, `["AUTH","`), `"]`)
}

// answer is the event that answers a challenge, signed with a secret key.
func answer(t *testing.T, challenge, secret string) nostr.Event {
	t.Helper()
	ev := nip42.CreateUnsignedAuthEvent(challenge, "", "wss://git.example.com/")
	must(t, ev.Sign(secret))
	return ev
}

// TestProtectedEvents: only their authenticated authors publish them (NIP-70).
func TestProtectedEvents(t *testing.T) {
	t.Parallel()
	sys := start(t)
	author, other := gonostr.GeneratePrivateKey(), gonostr.GeneratePrivateKey()
	protected := nostr.Event{Kind: 1621, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"-"}}}
	must(t, protected.Sign(author))
	c := sys.dial(t)
	c.say(`["REQ","free",{"kinds":[1621],"limit":0}]`)
	c.want(`["EOSE","free"]`) // who needs no authentication hears of none
	c.say(`["EVENT",%s]`, protected)
	challenge := c.challenged()
	c.want(`["OK","` + protected.ID + `",false,"auth-required: `)
	c.say(`["EVENT",%s]`, protected)
	c.want(`["OK","` + protected.ID + `",false,"auth-required: `) // the challenge is said once

	stranger := answer(t, challenge, other)
	c.hears(`["OK","`+stranger.ID+`",true,""]`, `["AUTH",%s]`, stranger)
	c.hears(`["OK","`+protected.ID+`",false,"restricted: `, `["EVENT",%s]`, protected)

	wrong := answer(t, challenge+"x", author)
	c.hears(`["OK","`+wrong.ID+`",false,"invalid: `, `["AUTH",%s]`, wrong)
	c.say(`["EVENT",%s]`, answer(t, challenge, author))
	c.want(`["OK",`) // ingest refuses it: it is for this relay alone
	c.hears(`["NOTICE","invalid: `, `["AUTH","%s"]`, challenge)

	proof := answer(t, challenge, author)
	c.hears(`["OK","`+proof.ID+`",true,""]`, `["AUTH",%s]`, proof)
	c.say(`["EVENT",%s]`, protected)
	heard := c.want(`["`) + c.want(`["`) // the answer, and the event for the subscription
	if !strings.Contains(heard, `["OK","`+protected.ID+`",true,""]`) || !strings.Contains(heard, `["EVENT","free",`) {
		t.Errorf("heard %s", heard)
	}

	// What was signed for one connection is worth nothing on another.
	again := sys.dial(t)
	again.hears(`["OK","`+proof.ID+`",false,"invalid: `, `["AUTH",%s]`, proof)
}

func TestAuthRequired(t *testing.T) {
	t.Parallel()
	for required, c := range map[string]struct{ read, write bool }{
		"none": {}, "read": {read: true}, "write": {write: true}, "both": {true, true},
	} {
		t.Run(required, func(t *testing.T) {
			t.Parallel()
			sys := start(t, "--auth-required="+required)
			conn := sys.dial(t)
			var challenge string
			if c.read || c.write {
				challenge = conn.challenged()
			}
			ask := func(read, write bool) {
				t.Helper()
				ev := signed(t, nostr.Event{Kind: 1621})
				for _, q := range []struct {
					refused                 bool
					say, refusal, otherwise string
				}{
					{read, `["REQ","s",{"kinds":[1621],"limit":0}]`, `["CLOSED","s",`, `["EOSE","s"]`},
					{read, `["COUNT","c",{"kinds":[1621]}]`, `["CLOSED","c",`, `["COUNT","c",`},
					{read, `["NEG-OPEN","n",{"kinds":[1621]},"6100000200"]`, `["NEG-ERR","n",`, `["NEG-MSG","n",`},
					{write, fmt.Sprintf(`["EVENT",%s]`, ev), `["OK","` + ev.ID + `",false,`, `["OK","` + ev.ID + `",true,`},
				} {
					want := q.otherwise
					if q.refused {
						want = q.refusal + `"auth-required: `
					}
					conn.hears(want, "%s", q.say)
					conn.say(`["CLOSE","s"]`)
					conn.say(`["NEG-CLOSE","n"]`)
				}
			}
			ask(c.read, c.write)
			if challenge == "" {
				return
			}
			proof := answer(t, challenge, gonostr.GeneratePrivateKey())
			conn.hears(`["OK","`+proof.ID+`",true,""]`, `["AUTH",%s]`, proof)
			ask(false, false)
		})
	}
}

// TestAuthIsPaced as events are: to check a signature costs as much.
func TestAuthIsPaced(t *testing.T) {
	t.Parallel()
	sys := start(t, "--auth-required=write", "--events-per-minute-per-ip=2")
	c := sys.dial(t)
	challenge := c.challenged()
	for _, want := range []string{`true,""`, `true,""`, `false,"rate-limited: `} {
		ev := answer(t, challenge, gonostr.GeneratePrivateKey())
		c.hears(`["OK","`+ev.ID+`",`+want, `["AUTH",%s]`, ev)
	}
}
