package fetch

import (
	"context"
	"errors"
	"net/http/httptrace"
	"net/netip"
)

// errPutOff is the cause by which a fetch ends whose server is not to be asked now.
var errPutOff = errors.New("others are asking servers at that address")

// watched asks Reached about every connection that a request of the context gets. end must be
// called when the fetch is over.
func (l Limits) watched(ctx context.Context) (_ context.Context, end func()) {
	if l.Reached == nil {
		return ctx, func() {}
	}
	ctx, cut := context.WithCancelCause(ctx)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		at, err := netip.ParseAddrPort(got.Conn.RemoteAddr().String())
		if err == nil && !l.Reached(at.Addr()) {
			cut(errPutOff)
		}
	}}), func() { cut(context.Canceled) }
}
