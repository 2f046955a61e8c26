// Package export writes what a running system has where others can read it: events as JSON lines,
// repositories as bare copies that need nothing else.
package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ErrNothing is a NATS server that no Tendril uses.
var ErrNothing = errors.New("there are no streams of Tendril")

// Log gives every event of the log to write, in the order of the log and as it is stored, and
// returns how many there were. It reads until it has come to the end of the log once: so whatever
// is accepted when it returns was given, also where a newer event took an older one's place
// meanwhile. A writer may have been given both then. told is told how far it is.
func Log(ctx context.Context, js jetstream.JetStream, told func(done, of int), write func(raw []byte) error) (events int, err error) {
	err = Each(ctx, js, proto.StreamEvents, told, forEach(func(m bus.Message) error {
		if _, err := proto.ParseEventSubject(m.Subject); err != nil {
			return nil // a writer's mark
		}
		if m.Header.Get(proto.HeaderRemoved) != "" {
			return nil // an event stood here that has left the log
		}
		raw := m.Data
		if bytes.IndexByte(raw, '\n') >= 0 {
			var line bytes.Buffer
			if err := json.Compact(&line, raw); err != nil {
				return fmt.Errorf("%s is no JSON: %w", m.Subject, err)
			}
			raw = line.Bytes()
		}
		events++
		return write(raw)
	}))
	return events, err
}

// Held gives every event that waits for its git data to write, in no order.
func Held(ctx context.Context, js jetstream.JetStream, write func(raw []byte) error) (events int, err error) {
	err = Each(ctx, js, proto.KVStream(proto.BucketHeld), func(int, int) {}, forEach(func(m bus.Message) error {
		c, _, _ := held.ReadChange(m)
		if c.Entry == nil {
			return nil // a key that is gone, a writer's mark, or unreadable
		}
		raw, err := c.Entry.Event.MarshalJSON()
		if err != nil {
			return fmt.Errorf("write a held event: %w", err)
		}
		events++
		return write(raw)
	}))
	return events, err
}

func forEach(each func(bus.Message) error) func([]bus.Message) error {
	return func(messages []bus.Message) error {
		for _, m := range messages {
			if err := each(m); err != nil {
				return err
			}
		}
		return nil
	}
}

// silence is how long nothing may come from a stream that has more to say.
const silence = 30 * time.Second

// Each gives every message of a stream to each, some at once, from the first one on until the end
// is reached once. told is told how far it is, in sequences.
func Each(ctx context.Context, js jetstream.JetStream, name string, told func(done, of int), each func([]bus.Message) error) error {
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrNothing
	}
	if err != nil {
		return fmt.Errorf("read stream %s: %w", name, err)
	}
	state := stream.CachedInfo().State
	reading, end := context.WithCancelCause(ctx)
	defer end(nil)
	watchdog := time.AfterFunc(silence, func() { end(fmt.Errorf("NATS has said nothing for %s", silence)) })
	defer watchdog.Stop()
	atEnd := false
	idle := func() {
		atEnd = true
		end(nil)
	}
	follower := bus.NewFollower(js, bus.Reading{Stream: name, Idle: idle}, slog.New(slog.DiscardHandler), func(messages []bus.Message) error {
		watchdog.Reset(silence)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := each(messages); err != nil {
			return err
		}
		last := messages[len(messages)-1].Seq
		told(int(last-min(last, state.FirstSeq)), int(max(last, state.LastSeq)-state.FirstSeq))
		return nil
	})
	if err := follower.Run(reading); err != nil {
		return err
	}
	if !atEnd {
		return fmt.Errorf("read stream %s: %w", name, context.Cause(reading))
	}
	now, err := js.Stream(ctx, name)
	if err == nil && !now.CachedInfo().Created.Equal(stream.CachedInfo().Created) {
		err = errors.New("NATS has made it anew meanwhile")
	}
	if err != nil {
		return fmt.Errorf("read stream %s: %w", name, err)
	}
	return nil
}

// Announced gathers the repositories that events announce.
type Announced map[nostr.RepoRef]bool

// Note looks at an event of the log.
func (a Announced) Note(raw []byte) {
	if !bytes.Contains(raw, []byte("30617")) {
		return
	}
	var ev nostr.Event
	if ev.UnmarshalJSON(raw) != nil || ev.Kind != nostr.KindAnnouncement {
		return
	}
	if announcement, err := nostr.ParseAnnouncement(&ev); err == nil {
		a[announcement.Ref] = true
	}
}
