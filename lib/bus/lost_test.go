package bus_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/test/fixture/nettest"
)

// TestFollowReadsWhatWasLostOnTheWay: of the answers to requests for messages some are lost, at the
// begin, in the middle and at the end of a batch. Every message is handed on once, in order.
func TestFollowReadsWhatWasLostOnTheWay(t *testing.T) {
	t.Parallel()
	own := open(t, bus.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	publish(t, own, "grasp.target.a.example", 1500, 10)

	var answers atomic.Int64
	lost := func() bool { return slices.Contains([]int64{1, 300, 1000, 1001, 1500}, answers.Add(1)) }
	address := strings.TrimPrefix(own.ClientURL(), "nats://")
	front := nettest.Front(t, func() (net.Conn, error) { return lossy(address, lost) })
	f := follow(t, open(t, bus.Options{URL: "nats://" + front}), targets, nil)
	f.caughtUp(t)
	f.has(t, seqs(1, 1500))
	if answers.Load() <= 1500 {
		t.Errorf("%d answers: none was lost", answers.Load())
	}
}

// lossy connects to a NATS server, and loses those messages of batches for which lost says so.
func lossy(address string, lost func() bool) (net.Conn, error) {
	server, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	client, between := net.Pipe()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, between) // ends with the connection
	}()
	go func() {
		defer between.Close()
		from := bufio.NewReader(server)
		for {
			line, err := from.ReadBytes('\n')
			if err != nil {
				return
			}
			fields := strings.Fields(string(line))
			if len(fields) > 1 && (fields[0] == "MSG" || fields[0] == "HMSG") {
				size, err := strconv.Atoi(fields[len(fields)-1])
				if err != nil {
					return
				}
				payload := make([]byte, size+len("\r\n"))
				if _, err := io.ReadFull(from, payload); err != nil {
					return
				}
				if bytes.Contains(payload, []byte("Nats-Num-Pending: ")) && bytes.Contains(payload, []byte("Nats-Subject: ")) && lost() {
					continue
				}
				line = append(line, payload...)
			}
			if _, err := between.Write(line); err != nil {
				return
			}
		}
	}()
	return client, nil
}
