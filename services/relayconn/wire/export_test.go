package wire

import (
	"time"

	"github.com/coder/websocket"
)

// On makes a connection of a socket that is open, and that cut closes, to a relay that may take so
// long to answer its end.
func On(ws *websocket.Conn, cut func(), goodbye time.Duration) *Conn {
	c := newConn(ws, cut, 1000)
	c.bye = goodbye
	return c
}
