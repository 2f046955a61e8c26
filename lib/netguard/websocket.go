package netguard

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/coder/websocket"
)

// DialWebSocket opens a WebSocket through the guard; whatever HTTPClient the options name is
// replaced by the guard's. ctx bounds the opening only. An answer that refuses the upgrade is a
// *HandshakeStatusError. For Classify that is a breach of protocol only if its status is no error of
// HTTP: a web page, say, where a WebSocket should be.
//
// For its limits on messages see websocket.Conn.SetReadLimit: the caller knows what it expects.
func (g *Guard) DialWebSocket(ctx context.Context, address string, options *websocket.DialOptions) (*websocket.Conn, error) {
	var o websocket.DialOptions
	if options != nil {
		o = *options
	}
	o.HTTPClient = g.HTTPClient()
	conn, response, err := websocket.Dial(ctx, address, &o)
	if err == nil {
		return conn, nil
	}
	if response == nil {
		return nil, &dialError{address, err}
	}
	return nil, &dialError{address, &HandshakeStatusError{Status: response.StatusCode, Err: err}}
}

// dialError says in its text what went wrong without the steps that the libraries name on the way
// ("failed to WebSocket dial: failed to send handshake request: Get …"): operators read it in one
// line of `tendril status`. The errors of the libraries are all in its chain.
type dialError struct {
	url string
	err error
}

func (e *dialError) Error() string {
	reason := strings.TrimPrefix(e.err.Error(), "failed to WebSocket dial: ")
	if request, ok := errors.AsType[*url.Error](e.err); ok {
		reason = request.Err.Error()
	}
	return "open WebSocket to " + e.url + ": " + reason
}

func (e *dialError) Unwrap() error { return e.err }

// HandshakeStatusError is an HTTP answer that was not, or not rightly, the upgrade to a WebSocket.
type HandshakeStatusError struct {
	Status int // HTTP status code
	Err    error
}

// Error says what the WebSocket library found wrong.
func (e *HandshakeStatusError) Error() string { return e.Err.Error() }

// Unwrap returns what the WebSocket library found wrong.
func (e *HandshakeStatusError) Unwrap() error { return e.Err }
