package wire_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

// reader is a connection that brings so many messages and ends.
type reader struct {
	count int
	make  func(n int) wire.Message
	read  int // that were put in or kept
}

var errGone = errors.New("the relay is gone")

func (r *reader) Read(_ context.Context, fn func(wire.Message) error) error {
	for ; r.read < r.count; r.read++ {
		if err := fn(r.make(r.read)); err != nil {
			return err
		}
	}
	return errGone
}

// TestInboxIsBounded: who reads a connection comes ahead of who hears it by so many messages and so
// many bytes, of whatever part of a message, and then waits for it. Everything comes in order.
func TestInboxIsBounded(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 20<<10)
	manyTags := make(nostr.Tags, 1000)
	for i := range manyTags {
		manyTags[i] = nostr.Tag{"a", "b"}
	}
	for name, tc := range map[string]struct {
		message wire.Message
		ahead   int // messages that are put in before one is heard
	}{
		"small":          {wire.Message{Kind: wire.EOSE}, 64},
		"event":          {wire.Message{Kind: wire.Event, Event: &nostr.Event{Content: large}}, 1},
		"many tags":      {wire.Message{Kind: wire.Event, Event: &nostr.Event{Tags: manyTags}}, 1},
		"subscription":   {wire.Message{Kind: wire.EOSE, Sub: large}, 3},
		"reason":         {wire.Message{Kind: wire.Notice, Reason: large}, 3},
		"frame":          {wire.Message{Kind: wire.NegMsg, Frame: []byte(large)}, 3},
		"larger than it": {wire.Message{Kind: wire.NegMsg, Frame: make([]byte, 1<<20)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const all = 100
				inbox, ended := wire.NewInbox(), false
				r := &reader{count: all, make: func(n int) wire.Message {
					m := tc.message
					m.Sub = fmt.Sprint(n, m.Sub)
					return m
				}}
				go func() {
					if err := inbox.Fill(t.Context(), r.Read); !errors.Is(err, errGone) {
						t.Errorf("ended with %v", err)
					}
					ended = true
				}()
				for heard := range all {
					synctest.Wait()
					if want := min(all, heard+tc.ahead); r.read != want {
						t.Fatalf("%d are put in when %d were heard, want %d", r.read, heard, want)
					}
					if ended {
						t.Fatalf("the connection has ended when %d were heard", heard)
					}
					m := <-inbox.Messages()
					if !strings.HasPrefix(m.Sub, fmt.Sprint(heard)) {
						t.Fatalf("%.10s is heard in place of %d", m.Sub, heard)
					}
					m.Heard()
					m.Heard() // a second time means nothing
				}
				if synctest.Wait(); !ended {
					t.Error("the connection has not ended when all were heard")
				}
			})
		})
	}
}
