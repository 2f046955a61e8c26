package bus

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/proto"
)

// Look connects to a NATS server to read what is there: it makes and changes nothing. With a
// Password it is a user of an embedded server: Role, or else the operator. timeout bounds the
// connecting. A connection that is lost later is taken up again until Close.
func Look(o Options, timeout time.Duration) (*Bus, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{}
	b.open, b.close = context.WithCancel(context.Background())
	options, err := remoteOptions(o)
	if err != nil {
		b.Close()
		return nil, err
	}
	options = append(append(b.connectOptions(o), options...), nats.Timeout(timeout))
	if o.Password != "" {
		options = append(options, nats.UserInfo(cmp.Or(o.Role, proto.UserOperator), o.Password))
	}
	if b.Conn, err = connect(o.URL, options); err != nil {
		b.Close()
		return nil, connectError(o, err)
	}
	if b.JS, err = openJetStream(b.Conn, o); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}
