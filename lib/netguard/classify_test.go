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
	for want, errs := range map[Cause][]error{
		CauseNone: {nil},
		CauseTimeout: {
			&net.DNSError{Err: "i/o timeout", IsTimeout: true}, context.DeadlineExceeded, os.ErrDeadlineExceeded,
			&handshakeError{"x", context.DeadlineExceeded},
		},
		CauseConnect: {
			&net.DNSError{Err: "connection refused"}, &net.DNSError{Err: "server misbehaving", IsTemporary: true},
			dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), dial(os.NewSyscallError("connect", syscall.ENETUNREACH)),
			&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
			&handshakeError{"x", io.EOF}, &handshakeError{"x", os.NewSyscallError("read", syscall.ECONNRESET)},
			errors.New("http: server closed idle connection"),
		},
		CauseTLS: {&net.OpError{Op: "remote error", Err: errors.New("tls: handshake failure")}},
		CauseProtocol: {
			&ProtocolError{Err: errors.New("message is not JSON")}, errors.New("readLoopPeekFailLocked: %!w(<nil>)"),
			textproto.ProtocolError("malformed MIME header"),
		},
		CauseOther: {&net.DNSError{Err: "cancelled", UnwrapErr: context.Canceled}, errors.New("anything")},
	} {
		for _, err := range errs {
			wrapped := fmt.Errorf("connect to relay: %w", &url.Error{Op: "Get", URL: "https://x", Err: err})
			if got := Classify(err); got != want || err != nil && Classify(wrapped) != want {
				t.Errorf("%v is %q, and wrapped %q, want %q", err, got, Classify(wrapped), want)
			}
		}
	}
}
