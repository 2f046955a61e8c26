package gateway

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
)

// BenchmarkRequest500 asks for the newest 500 events of a kind, from the REQ to the EOSE, as one
// client and as eight at once. One operation is one REQ. The clients do no more than to find the
// ends of messages, so that the figures are the relay's.
func BenchmarkRequest500(b *testing.B) {
	for _, events := range []int{500, 100_000} {
		sys := start(b, nil)
		sys.store(b, requested(events)...)
		for _, clients := range []int{1, 8} {
			b.Run(fmt.Sprintf("events=%d/clients=%d", events, clients), func(b *testing.B) { sys.request500(b, clients) })
		}
	}
}

// requested makes events of five kinds, in turns, with those of kind 1621 at least 500.
func requested(n int) []*nostr.Event {
	all := make([]*nostr.Event, n)
	for i := range all {
		kind := 1621
		if n > 500 {
			kind += i % 5
		}
		ev := fake(i, kind, nostr.Tag{"a", "30617:" + strings.Repeat("a", 64) + ":repo"}, nostr.Tag{"subject", "x"})
		ev.Content = strings.Repeat("content ", 40)
		ev.ID = ev.GetID()
		all[i] = ev
	}
	return all
}

func (sys *system) request500(b *testing.B, clients int) {
	var open []*counter
	for range clients {
		open = append(open, sys.count(b))
	}
	b.ReportAllocs()
	b.ResetTimer()
	used := cpuTime(b)
	var all sync.WaitGroup
	for n, c := range open {
		all.Go(func() {
			for range b.N/clients + min(1, max(0, b.N%clients-n)) {
				if err := c.request(`["REQ","s",{"kinds":[1621],"limit":500}]`, 500); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(500*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(500*float64(b.N)/(cpuTime(b)-used).Seconds(), "events/cpu-s")
	b.ReportMetric(float64(open[0].reads)/float64(max(1, b.N/clients)), "reads/op")
}

// counter is a client that only counts what it is sent.
type counter struct {
	net.Conn
	in    *bufio.Reader
	reads int
}

// count connects a counter.
func (sys *system) count(t testing.TB) *counter {
	t.Helper()
	conn, err := net.Dial("tcp", sys.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c := &counter{Conn: conn}
	c.in = bufio.NewReaderSize(readerFunc(func(p []byte) (int, error) { c.reads++; return conn.Read(p) }), 256<<10)
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", sys.addr)
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("no WebSocket: %v, %v", answer, err)
	}
	c.reads = 0
	return c
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// request sends a REQ of less than 126 bytes and counts its events up to EOSE.
func (c *counter) request(req string, want int) error {
	// A frame of text in one piece; the key of its mask is zero.
	frame := append([]byte{0x81, 0x80 | byte(len(req)), 0, 0, 0, 0}, req...)
	if _, err := c.Write(frame); err != nil {
		return err
	}
	for n := 0; ; n++ {
		message, size, err := c.next()
		if err != nil {
			return err
		}
		if message[0] == 0 { // a ping
			n--
			continue
		}
		if bytes.HasPrefix(message, []byte(`["EOSE"`)) {
			if n != want {
				return fmt.Errorf("%d events, want %d", n, want)
			}
			return nil
		}
		if !bytes.HasPrefix(message, []byte(`["EVENT"`)) || size < 500 {
			return fmt.Errorf("heard %s… of %d bytes", message, size)
		}
	}
}

// next returns the first bytes of the next message, and its size. Those of a ping are a zero.
func (c *counter) next() (begin []byte, size int, err error) {
	head, err := c.in.Peek(2)
	if err != nil {
		return nil, 0, err
	}
	if head[0] == 0x89 { // a ping, to which no answer is due for half a minute
		_, err := c.in.Discard(2 + int(head[1]))
		return []byte{0}, 0, err
	}
	if head, err = c.in.Peek(4); err != nil {
		return nil, 0, err
	}
	size, skip := int(head[1]), 2
	switch {
	case head[0] != 0x81 || size > 126:
		return nil, 0, errors.New("not a text of less than 64 KiB in one piece")
	case size == 126:
		size, skip = int(binary.BigEndian.Uint16(head[2:])), 4
	}
	if _, err := c.in.Discard(skip); err != nil {
		return nil, 0, err
	}
	var first [8]byte
	if _, err := io.ReadFull(c.in, first[:min(size, len(first))]); err != nil {
		return nil, 0, err
	}
	_, err = c.in.Discard(size - min(size, len(first)))
	return first[:], size, err
}

// cpuTime is what the process has used of all cores.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
