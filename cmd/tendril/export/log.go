// Package export writes what a running system has where others can read it: events as JSON lines,
// repositories as bare copies that need nothing else.
package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ErrNothing is a NATS server that no Tendril uses.
var ErrNothing = errors.New("there are no streams of Tendril")

// Progress is told how far a reading has come, in messages. It is called for each: it must be
// quick.
type Progress func(done, of uint64)

// prefetch is how many messages are asked for at once, prefetchBytes how many bytes.
const (
	prefetch      = 1000
	prefetchBytes = 8 << 20
)

// silence is how long a stream that has more to say may be silent before it is asked whether it is
// still there.
const silence = 10 * time.Second

// Log gives every event of the log to write, in the order of the log and as it is stored, and
// returns how many there were. It reads until it has come to the end of the log once: so whatever
// is accepted when it returns was given, also where a newer event took an older one's place
// meanwhile. A writer may have been given both then.
func Log(ctx context.Context, js jetstream.JetStream, progress Progress, write func(raw []byte) error) (events int, err error) {
	err = Each(ctx, js, proto.StreamEvents, progress, func(m jetstream.Msg) error {
		if _, err := proto.ParseEventSubject(m.Subject()); err != nil {
			return nil // a writer's mark
		}
		if m.Headers().Get(proto.HeaderRemoved) != "" {
			return nil // an event stood here that has left the log
		}
		raw, err := oneLine(m.Data())
		if err != nil {
			return fmt.Errorf("%s is no JSON: %w", m.Subject(), err)
		}
		events++
		return write(raw)
	})
	return events, err
}

// Held gives every event that waits for its git data to write, in no order.
func Held(ctx context.Context, js jetstream.JetStream, write func(raw []byte) error) (events int, err error) {
	err = Each(ctx, js, proto.KVStream(proto.BucketHeld), nil, func(m jetstream.Msg) error {
		c, _, _ := held.ReadChange(bus.Message{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()})
		if c.Entry == nil {
			return nil // a key that is gone, a writer's mark, or unreadable
		}
		raw, err := c.Entry.Event.MarshalJSON()
		if err != nil {
			return fmt.Errorf("write a held event: %w", err)
		}
		events++
		return write(raw)
	})
	return events, err
}

// oneLine returns JSON without line breaks, as it is if it has none.
func oneLine(raw []byte) ([]byte, error) {
	if bytes.IndexByte(raw, '\n') < 0 {
		return raw, nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// Each gives every message of a stream to each, from the first one on until the end is reached
// once. progress may be nil.
func Each(ctx context.Context, js jetstream.JetStream, name string, progress Progress, each func(jetstream.Msg) error) error {
	fail := func(err error) error { return fmt.Errorf("read stream %s: %w", name, err) }
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return ErrNothing
	}
	if err != nil {
		return fail(err)
	}
	begun := stream.CachedInfo()
	if begun.State.Msgs == 0 {
		return nil
	}
	consumer, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return fail(err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(prefetch, prefetchBytes))
	if err != nil {
		return fail(err)
	}
	defer messages.Stop()
	for done := uint64(1); ; done++ {
		msg, err := next(ctx, js, messages, begun)
		if err != nil {
			return fail(err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fail(err)
		}
		if err := each(msg); err != nil {
			return err
		}
		if progress != nil {
			progress(done, done+meta.NumPending)
		}
		if meta.NumPending == 0 {
			return same(ctx, js, begun)
		}
	}
}

// next waits for a message, as long as the stream is the one that it was.
func next(ctx context.Context, js jetstream.JetStream, messages jetstream.MessagesContext, begun *jetstream.StreamInfo) (jetstream.Msg, error) {
	for {
		waiting, cancel := context.WithTimeout(ctx, silence)
		msg, err := messages.Next(jetstream.NextContext(waiting))
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jetstream.ErrNoHeartbeat) {
			return msg, errors.Join(err, ctx.Err())
		}
		if err := same(ctx, js, begun); err != nil {
			return nil, err
		}
	}
}

// same asks whether a stream is still the one that it was.
func same(ctx context.Context, js jetstream.JetStream, begun *jetstream.StreamInfo) error {
	now, err := js.Stream(ctx, begun.Config.Name)
	if err != nil {
		return err
	}
	if !now.CachedInfo().Created.Equal(begun.Created) {
		return errors.New("NATS has made it anew meanwhile")
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
