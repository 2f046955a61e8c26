package relay

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// HearEphemeral brings the ephemeral events that ingest passes on to the subscriptions, until stop
// is called. No stream has them: what comes while the bus is away does not come again.
func (r *Relay) HearEphemeral(conn *nats.Conn) (stop func(), err error) {
	sub, err := conn.Subscribe(proto.AnyEphemeral, func(m *nats.Msg) { r.feedEphemeral(m.Data) })
	if err == nil {
		err = conn.Flush() // from here on none is missed
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to ephemeral events: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // it fails only where the connection has ended
}

// feedEphemeral takes one in. Its record has no sequence, because it is not in the log.
func (r *Relay) feedEphemeral(data []byte) {
	if r.hub.count.Load() == 0 {
		return
	}
	ev, err := nostr.Parse(data)
	if err != nil || !nostr.IsEphemeralKind(ev.Kind) {
		r.Log.Error("what is passed on is no ephemeral event", "error", err)
		return
	}
	r.hub.feed([]eventdb.Record{{Event: ev, Raw: data}})
}
