package wire

import (
	"context"
	"time"

	"github.com/coder/websocket"
)

// On makes a connection of a socket that is open, to a relay that may take so long to answer its
// end.
func On(ctx context.Context, ws *websocket.Conn, goodbye time.Duration) *Conn {
	c := newConn(ctx, ws, 1000)
	c.bye = goodbye
	return c
}
