package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"syscall"
)

// Cause is what kind of failure kept us from a server.
type Cause string

// Causes. Name resolution, TLS and protocol errors are the server's own and last; the rest may
// pass.
const (
	CauseNone     Cause = ""         // no error
	CauseDNS      Cause = "dns"      // the name does not exist
	CauseTLS      Cause = "tls"      // the handshake failed
	CauseProtocol Cause = "protocol" // what answers does not speak HTTP or WebSocket as it should
	CauseRefused  Cause = "refused"  // the guard did not let us
	CauseTimeout  Cause = "timeout"  // it took too long
	CauseConnect  Cause = "connect"  // no connection, or one that broke
	CauseOther    Cause = "other"
)

// Lasting reports whether the cause is the server's own fault and will not pass by trying again
// soon (the naughty list).
func (c Cause) Lasting() bool { return c == CauseDNS || c == CauseTLS || c == CauseProtocol }

// ProtocolError marks an error as the other side's breach of the protocol, for [Classify]: a caller
// wraps in it what it has read and cannot be right. The connection worked until then.
type ProtocolError struct{ Err error }

// Error is the error that was marked.
func (e *ProtocolError) Error() string { return e.Err.Error() }

// Unwrap returns the error that was marked.
func (e *ProtocolError) Unwrap() error { return e.Err }

// untyped are failures for which net/http has words but no exported type.
var untyped = []struct {
	words string
	cause Cause
}{
	{"malformed HTTP", CauseProtocol},                     // an answer that is not HTTP
	{"server response headers exceeded", CauseProtocol},   // a header beyond its bound
	{"readLoopPeekFailLocked: %!w(<nil>)", CauseProtocol}, // the server spoke before it was asked
	{"server closed idle connection", CauseConnect},       // it hung up before it was asked
}

// Classify tells what kind of failure an error of this package's clients and WebSockets is. A
// time-out counts as such in every stage. Of the failures of name resolution only the answer that
// there is no such name is the server's own fault; a resolver that cannot be reached is ours, and
// counts as a connection that failed. A handshake that was cut off is a broken connection: a server
// that restarts looks like this.
func Classify(err error) Cause {
	if err == nil {
		return CauseNone
	}
	timed, isNet := errors.AsType[net.Error](err)
	name, isName := errors.AsType[*net.DNSError](err)
	answer, isDial := errors.AsType[*dialError](err)
	op, isOp := errors.AsType[*net.OpError](err)
	broken := as[syscall.Errno](err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(err, ErrRefused):
		return CauseRefused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isNet && timed.Timeout():
		return CauseTimeout
	case errors.Is(err, context.Canceled):
		return CauseOther
	case isName && name.IsNotFound:
		return CauseDNS
	case isName:
		return CauseConnect
	// An alert of the other side has no type of its own outside QUIC; crypto/tls wraps it so.
	case !broken && (as[*handshakeError](err) || isOp && (op.Op == "remote error" || op.Op == "local error")):
		return CauseTLS
	case isDial && answer.status >= http.StatusMultipleChoices: // a proxy whose backend restarts says so
		return CauseOther
	case isDial && answer.status > 0, as[*ProtocolError](err), as[textproto.ProtocolError](err):
		return CauseProtocol
	}
	for _, u := range untyped {
		if strings.Contains(err.Error(), u.words) {
			return u.cause
		}
	}
	if broken || isOp || errors.Is(err, net.ErrClosed) {
		return CauseConnect
	}
	return CauseOther
}

func as[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
