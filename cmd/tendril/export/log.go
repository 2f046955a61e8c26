// Package export writes what a running system has where others can read it: events as JSON lines,
// repositories as bare copies that need nothing else.
package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ErrNothing is a NATS server that no Tendril uses.
var ErrNothing = errors.New("there are no streams of Tendril")

// Log gives every event of the log to write, in the order of the log and as it is stored, and
// returns how many there were. It reads until it has come to the end of the log once: what is
// accepted when it returns was given, also where a newer event took the place of an older one
// meanwhile. It may have given both then. told is told how far it is.
func Log(ctx context.Context, js jetstream.JetStream, told func(done, of int), write func(raw []byte) error) (events int, err error) {
	err = Each(ctx, js, proto.StreamEvents, told, func(m bus.Message) error {
		if m.Subject == proto.SubjectEventsMark || m.Header.Get(proto.HeaderRemoved) != "" {
			return nil // an event was here that has left the log
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
	})
	return events, err
}

// Held gives every event that waits for its git data to write, in no order.
func Held(ctx context.Context, js jetstream.JetStream, write func(raw []byte) error) (events int, err error) {
	err = Each(ctx, js, proto.KVStream(proto.BucketHeld), func(int, int) {}, func(m bus.Message) error {
		c, _, _ := held.ReadChange(m)
		if c.Entry == nil {
			return nil // a key that is gone, a writer's mark, or unreadable
		}
		events++
		return write(nostr.Encode(c.Entry.Event))
	})
	return events, err
}

// Each gives every message of a stream to each, from the first one on until the end is reached
// once. told is told how far it is, in sequences.
func Each(ctx context.Context, js jetstream.JetStream, name string, told func(done, of int), each func(bus.Message) error) error {
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrNothing
	}
	if err != nil {
		return fmt.Errorf("read stream %s: %w", name, err)
	}
	state := stream.CachedInfo().State
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = bus.Read(reading, js, bus.Reading{Stream: name}, func(m bus.Message) {
		if reading.Err() != nil {
			return
		}
		if err := each(m); err != nil {
			stop(err)
		}
		told(int(m.Seq-min(m.Seq, state.FirstSeq)), int(max(m.Seq, state.LastSeq)-state.FirstSeq))
	})
	if reading.Err() != nil {
		err = context.Cause(reading)
	}
	if err != nil {
		return err
	}
	now, err := js.Stream(ctx, name)
	if err == nil && !now.CachedInfo().Created.Equal(stream.CachedInfo().Created) {
		err = errors.New("NATS has replaced it meanwhile")
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
