package session_test

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

// members is a relay that answers those who have authenticated.
type members struct {
	*play
	member  bool
	refused int
}

func (m *members) Req(ctx context.Context, sub string, filters []nostr.Filter) error {
	member := false
	m.with(func() {
		if member = m.member; !member {
			m.refused++
		}
	})
	if member {
		return m.play.Req(ctx, sub, filters)
	}
	go func() { m.messages <- wire.Message{Kind: wire.Closed, Sub: sub, Reason: "auth-required: members only"} }()
	return nil
}

// TestAuthentication: what a relay refuses for want of authentication is asked again when we have
// answered its challenge, once a connection, whenever that comes. Without a key nothing is said.
func TestAuthentication(t *testing.T) {
	type row struct{ late, keyless, strict bool }
	each(t, map[string]row{"at once": {}, "late": {late: true}, "without a key": {keyless: true}, "a stranger all the same": {strict: true}}, func(t *testing.T, p *play, tc row) {
		p.stored = append(p.stored, issue(1000, "30617:aa:000"))
		relay, answers := &members{play: p}, 0
		var told strings.Builder
		p.session.Log = logTo(&told)
		p.session.Asker = relay
		p.session.Authenticate = func(_ context.Context, challenge string) error {
			if answers++; tc.keyless {
				return fs.ErrNotExist
			}
			if challenge != "prove it" {
				t.Errorf("answered %q", challenge)
			}
			p.with(func() { relay.member = !tc.strict })
			return nil
		}
		p.begin()
		if tc.late {
			time.Sleep(time.Second)
		}
		p.messages <- wire.Message{Kind: wire.Auth, Reason: "prove it"}
		p.wants(1)
		sleep(20 * time.Second)
		if st, in := p.status(), !tc.keyless && !tc.strict; (st.Confirmed.Target == 1 && st.CaughtUp && len(p.accepted) == 1) != in || answers != 1 {
			t.Errorf("%d events, %d answers, %+v", len(p.accepted), answers, st)
		}
		if n := strings.Count(told.String(), "NIP-42"); (n > 0) != (tc.keyless || tc.strict) || n > 1 {
			t.Errorf("told %d times:\n%s", n, told.String())
		}
		if relay.refused > 12 {
			t.Errorf("%d refusals", relay.refused)
		}
	})
}
