package hostile

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// conn is a WebSocket whose frames are written by hand: no library breaks the rules.
type conn struct {
	conn net.Conn
	in   *bufio.Reader
	mu   sync.Mutex // of what is written
}

// accept answers the handshake of RFC 6455 and takes the connection over.
func accept(w http.ResponseWriter, req *http.Request) (*conn, error) {
	key := req.Header.Get("Sec-WebSocket-Key")
	hijacker, can := w.(http.Hijacker)
	if key == "" || !can || !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return nil, errors.New("this is a relay")
	}
	c, buffered, err := hijacker.Hijack()
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "+
		base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n"); err != nil {
		c.Close()
		return nil, err
	}
	return &conn{conn: c, in: buffered.Reader}, nil
}

const (
	finalText = 0x81
	finalPong = 0x8a
	opText    = 0x1
	opClose   = 0x8
	opPing    = 0x9
)

// most is the longest message that is taken.
const most = 4 << 20

// head is the beginning of a frame of so many bytes.
func head(first byte, size int) []byte {
	switch {
	case size < 126:
		return []byte{first, byte(size)}
	case size < 1<<16:
		return binary.BigEndian.AppendUint16([]byte{first, 126}, uint16(size))
	}
	return binary.BigEndian.AppendUint64([]byte{first, 127}, uint64(size))
}

// raw writes bytes.
func (c *conn) raw(data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.conn.Write(data)
	return err
}

// send writes a message.
func (c *conn) send(text string) error { return c.raw(append(head(finalText, len(text)), text...)) }

// next reads the next message, and answers pings meanwhile.
func (c *conn) next() ([]byte, error) {
	for {
		op, data, err := c.frame()
		switch {
		case err != nil:
			return nil, err
		case op == opText:
			return data, nil
		case op == opClose:
			return nil, io.EOF
		case op == opPing:
			if err := c.raw(append(head(finalPong, len(data)), data...)); err != nil {
				return nil, err
			}
		}
	}
}

// frame reads a client's frame, which is masked and whole.
func (c *conn) frame() (op byte, data []byte, err error) {
	var two [2]byte
	if _, err := io.ReadFull(c.in, two[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(two[1] & 0x7f)
	switch size {
	case 126:
		var n uint16
		err = binary.Read(c.in, binary.BigEndian, &n)
		size = uint64(n)
	case 127:
		err = binary.Read(c.in, binary.BigEndian, &size)
	}
	if err != nil {
		return 0, nil, err
	}
	if size > most {
		return 0, nil, errors.New("the client's message is too long")
	}
	data = make([]byte, 4+size)
	if _, err := io.ReadFull(c.in, data); err != nil {
		return 0, nil, err
	}
	mask, data := data[:4], data[4:]
	for i := range data {
		data[i] ^= mask[i%4]
	}
	return two[0] & 0xf, data, nil
}
