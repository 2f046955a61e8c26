package bench

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// client is a nostr client that costs as little as one can: it decodes nothing. It writes its own
// frames, because a library that checks, allocates and decodes would be what is measured.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	text []byte // the message that was read last
}

// dial opens a WebSocket to a ws:// URL.
func dial(t testing.TB, url string) *client {
	t.Helper()
	host := strings.TrimPrefix(url, "ws://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &client{conn: conn, in: bufio.NewReaderSize(conn, 256<<10)}
	key := make([]byte, 16)
	rand.Read(key)
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", host, base64.StdEncoding.EncodeToString(key)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("open a WebSocket: %v, %v", resp, err)
	}
	return c
}

// Bits and opcodes of RFC 6455.
const (
	finalText = 0x81
	masked    = 0x80
	opText    = 0x1
	opPing    = 0x9
	finalPong = 0x8a
)

// send sends a message.
func (c *client) send(first byte, text []byte) error {
	c.out = append(c.out[:0], first)
	switch n := len(text); {
	case n < 126:
		c.out = append(c.out, masked|byte(n))
	case n < 1<<16:
		c.out = binary.BigEndian.AppendUint16(append(c.out, masked|126), uint16(n))
	default:
		c.out = binary.BigEndian.AppendUint64(append(c.out, masked|127), uint64(n))
	}
	c.out = append(append(c.out, 0, 0, 0, 0), text...) // the mask changes nothing
	_, err := c.conn.Write(c.out)
	return err
}

// next reads the next message of text into c.text. Frames of servers are not masked.
func (c *client) next() error {
	for {
		head, err := c.in.Peek(2)
		if err != nil {
			return err
		}
		op, size, skip := head[0]&0xf, int(head[1]), 2
		switch size {
		case 126:
			if head, err = c.in.Peek(4); err != nil {
				return err
			}
			size, skip = int(binary.BigEndian.Uint16(head[2:])), 4
		case 127:
			if head, err = c.in.Peek(10); err != nil {
				return err
			}
			size, skip = int(binary.BigEndian.Uint64(head[2:])), 10
		}
		if _, err := c.in.Discard(skip); err != nil {
			return err
		}
		if size > cap(c.text) {
			c.text = make([]byte, size)
		}
		c.text = c.text[:size]
		if _, err := io.ReadFull(c.in, c.text); err != nil {
			return err
		}
		switch op {
		case opText:
			return nil
		case opPing:
			if err := c.send(finalPong, bytes.Clone(c.text)); err != nil {
				return err
			}
		default:
			return fmt.Errorf("a frame of type %d", op)
		}
	}
}

// request asks for stored events and returns how many came. Many may be asked for in turn, with the
// same subscription.
func (c *client) request(filter string) (events int, err error) {
	c.conn.SetDeadline(time.Now().Add(time.Minute))
	if err := c.send(finalText, []byte(`["REQ","r",`+filter+`]`)); err != nil {
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
			return events, c.send(finalText, []byte(`["CLOSE","r"]`))
		default:
			return 0, fmt.Errorf("answered %.200s", c.text)
		}
	}
}
