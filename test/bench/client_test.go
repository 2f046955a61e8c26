package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/gobwas/ws"
)

// client is a nostr client that costs as little as one can: it decodes nothing, and has one buffer
// for what it reads.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	out  bytes.Buffer
	text []byte // the message that was read last
}

// dial opens a WebSocket to a ws:// URL.
func dial(t testing.TB, url string) *client {
	t.Helper()
	conn, _, _, err := ws.Dial(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &client{conn: conn, in: bufio.NewReaderSize(conn, 256<<10)}
}

// send sends a message.
func (c *client) send(op ws.OpCode, text []byte) error {
	c.out.Reset()
	// The mask is zero, and changes nothing.
	if err := ws.WriteHeader(&c.out, ws.Header{Fin: true, OpCode: op, Masked: true, Length: int64(len(text))}); err != nil {
		return err
	}
	c.out.Write(text)
	_, err := c.conn.Write(c.out.Bytes())
	return err
}

// next reads the next message of text into c.text.
func (c *client) next() error {
	for {
		head, err := ws.ReadHeader(c.in)
		if err != nil {
			return err
		}
		if int(head.Length) > cap(c.text) {
			c.text = make([]byte, head.Length)
		}
		c.text = c.text[:head.Length]
		if _, err := io.ReadFull(c.in, c.text); err != nil {
			return err
		}
		switch head.OpCode {
		case ws.OpText:
			return nil
		case ws.OpPing:
			if err := c.send(ws.OpPong, c.text); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a frame of type %d", head.OpCode)
		}
	}
}

// request asks for stored events and returns how many came. Many may be asked for in turn, with the
// same subscription.
func (c *client) request(filter string) (events int, err error) {
	c.conn.SetDeadline(time.Now().Add(time.Minute))
	if err := c.send(ws.OpText, []byte(`["REQ","r",`+filter+`]`)); err != nil {
		return 0, err
	}
	for {
		if err := c.next(); err != nil {
			return 0, err
		}
		switch {
		case bytes.HasPrefix(c.text, []byte(`["EVENT"`)):
			events++
		case bytes.HasPrefix(c.text, []byte(`["EOSE"`)):
			return events, c.send(ws.OpText, []byte(`["CLOSE","r"]`))
		default:
			return 0, fmt.Errorf("answered %.200s", c.text)
		}
	}
}
