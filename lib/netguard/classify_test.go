package netguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"syscall"
	"testing"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, c := range []struct {
		name string
		err  error
		want Cause
	}{
		{"nothing", nil, CauseNone},
		{"silent resolver", &net.DNSError{Err: "i/o timeout", IsTimeout: true}, CauseTimeout},
		{"resolver that is away", &net.DNSError{Err: "connection refused"}, CauseConnect},
		{"resolver that fails", &net.DNSError{Err: "server misbehaving", IsTemporary: true}, CauseConnect},
		{"connection refused", dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), CauseConnect},
		{"unreachable", dial(os.NewSyscallError("connect", syscall.ENETUNREACH)), CauseConnect},
		{"reset", &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, CauseConnect},
		{"deadline", context.DeadlineExceeded, CauseTimeout},
		{"read deadline", os.ErrDeadlineExceeded, CauseTimeout},
		{"cancelled", &net.DNSError{Err: "cancelled", UnwrapErr: context.Canceled}, CauseOther},
		{"handshake cut off", &handshakeError{"x", io.EOF}, CauseConnect},
		{"handshake reset", &handshakeError{"x", os.NewSyscallError("read", syscall.ECONNRESET)}, CauseConnect},
		{"handshake timed out", &handshakeError{"x", context.DeadlineExceeded}, CauseTimeout},
		{"alert", &net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}, CauseTLS},
		{"marked", &ProtocolError{Err: errors.New("message is not JSON")}, CauseProtocol},
		{"spoken too early", errors.New("readLoopPeekFailLocked: %!w(<nil>)"), CauseProtocol},
		{"hung up too early", errors.New("http: server closed idle connection"), CauseConnect},
		{"header", textproto.ProtocolError("malformed MIME header"), CauseProtocol},
		{"anything", errors.New("anything"), CauseOther},
	} {
		wrapped := fmt.Errorf("connect to relay: %w", &url.Error{Op: "Get", URL: "https://x", Err: c.err})
		if got := Classify(c.err); got != c.want || c.err != nil && Classify(wrapped) != c.want {
			t.Errorf("%s: %v is %q, and wrapped %q, want %q", c.name, c.err, got, Classify(wrapped), c.want)
		}
	}
}
