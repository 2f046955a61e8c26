package netguard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// ProtocolError marks an error as the other side's breach of the protocol. Callers that speak a
// protocol over a guarded connection wrap what they find wrong in it, for Classify.
type ProtocolError struct{ Err error }

// Error is the error that was marked.
func (e *ProtocolError) Error() string { return e.Err.Error() }

// Unwrap returns the error that was marked.
func (e *ProtocolError) Unwrap() error { return e.Err }

// Classify tells what kind of failure an error of this package's dialer, clients and WebSockets is.
// A time-out counts as such in whatever stage it struck. Of the failures of name resolution only
// the answer that there is no such name is the server's own fault; a resolver that cannot be
// reached is ours, and counts as a connection that failed.
func Classify(err error) Cause {
	switch {
	case err == nil:
		return CauseNone
	case errors.Is(err, ErrRefused):
		return CauseRefused
	case isTimeout(err):
		return CauseTimeout
	case errors.Is(err, context.Canceled):
		return CauseOther
	case as[*net.DNSError](err):
		return classifyResolution(err)
	case isTLS(err):
		return CauseTLS
	case isAnswered(err):
		return CauseOther
	case isProtocol(err):
		return CauseProtocol
	case isConnect(err):
		return CauseConnect
	}
	return CauseOther
}

func as[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	timed, ok := errors.AsType[net.Error](err)
	return ok && timed.Timeout()
}

func classifyResolution(err error) Cause {
	if failure, ok := errors.AsType[*net.DNSError](err); ok && failure.IsNotFound {
		return CauseDNS
	}
	return CauseConnect
}

// isAnswered reports whether a server answered the handshake of a WebSocket as HTTP should: with a
// status that says no. A proxy whose backend restarts does so, and it may pass.
func isAnswered(err error) bool {
	failure, ok := errors.AsType[*HandshakeStatusError](err)
	return ok && failure.Status >= http.StatusBadRequest
}

// isTLS reports whether the handshake failed by what the other side said. One that was cut off is a
// broken connection: a server that restarts looks like this.
func isTLS(err error) bool {
	if isBroken(err) {
		return false
	}
	if as[*HandshakeError](err) || as[*tls.CertificateVerificationError](err) || as[tls.RecordHeaderError](err) {
		return true
	}
	if as[x509.UnknownAuthorityError](err) || as[x509.HostnameError](err) || as[x509.CertificateInvalidError](err) {
		return true
	}
	// An alert of the other side has no type of its own outside QUIC; crypto/tls wraps it so.
	failure, ok := errors.AsType[*net.OpError](err)
	return ok && (failure.Op == "remote error" || failure.Op == "local error")
}

func isProtocol(err error) bool {
	return as[*ProtocolError](err) || as[*HandshakeStatusError](err) || as[textproto.ProtocolError](err) || saidByHTTP(err, CauseProtocol)
}

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

func saidByHTTP(err error, cause Cause) bool {
	message := err.Error()
	for _, u := range untyped {
		if u.cause == cause && strings.Contains(message, u.words) {
			return true
		}
	}
	return false
}

func isConnect(err error) bool {
	return isBroken(err) || as[*net.OpError](err) || errors.Is(err, net.ErrClosed) || saidByHTTP(err, CauseConnect)
}

// isBroken reports whether the connection ended, or was refused, below what we speak over it.
func isBroken(err error) bool {
	return as[syscall.Errno](err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
