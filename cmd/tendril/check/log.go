package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/cmd/tendril/export"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// logBatch is how many events of the log are looked at together.
const logBatch = 1000

// checkLog reads the log, looks at every event of it, and makes an index of it.
func (c *checker) checkLog(ctx context.Context) error {
	if err := eventdb.Bind(ctx, c.Bus.JS, c.truth, c.Log); err != nil {
		return fmt.Errorf("check the log: %w", err)
	}
	var batch []message
	var head uint64
	flush := func() error {
		err := c.take(batch)
		batch = batch[:0]
		return err
	}
	err := export.Each(ctx, c.Bus.JS, proto.StreamEvents, func(done, of uint64) { c.Progress("events", done, of) }, func(m jetstream.Msg) error {
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		head = meta.Sequence.Stream
		if m.Subject() == proto.SubjectEventsMark {
			return nil
		}
		if batch = append(batch, message{seq: head, subject: m.Subject(), data: m.Data(), removed: m.Headers().Get(proto.HeaderRemoved)}); len(batch) < logBatch {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err == nil {
		err = c.truth.Advance(head)
	}
	if err != nil {
		return fmt.Errorf("check the log: %w", err)
	}
	return nil
}

// message is one of the log.
type message struct {
	seq     uint64
	subject string
	data    []byte
	removed string // id of the event in whose place it stands, which has left the log
}

// take looks at events of the log on all processors, and puts them into the index.
func (c *checker) take(batch []message) error {
	events, wrong := make([]*nostr.Event, len(batch)), make([]error, len(batch))
	var all sync.WaitGroup
	for first := range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := first; i < len(batch); i += runtime.GOMAXPROCS(0) {
				events[i], wrong[i] = look(batch[i])
			}
		})
	}
	all.Wait()
	var records []eventdb.Record
	for i, m := range batch {
		if m.removed == "" {
			c.report.Events++
		} else if nostr.IsHex64(m.removed) {
			records = append(records, eventdb.Record{Seq: m.seq, Removed: m.removed})
		}
		if wrong[i] != nil {
			c.found(PartLog, fmt.Sprintf("message %d, %s", m.seq, m.subject), wrong[i].Error(), "", nil)
		}
		if events[i] != nil {
			records = append(records, eventdb.Record{Seq: m.seq, Event: events[i], Raw: m.data})
		}
	}
	if len(records) == 0 {
		return nil
	}
	return c.truth.Apply(records)
}

// look checks one message. The event is given wherever an index takes it.
func look(m message) (*nostr.Event, error) {
	if m.removed != "" {
		return nil, lookAtRemoval(m)
	}
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(m.data); err != nil {
		return nil, fmt.Errorf("it is no event: %w", err)
	}
	if !nostr.IsHex64(ev.ID) || !nostr.IsHex64(ev.PubKey) {
		return nil, errors.New("it is no event: its id or public key is not 64 lower-case hex digits")
	}
	if subject := proto.EventSubjectOf(ev).String(); subject != m.subject {
		return ev, fmt.Errorf("its event belongs at %s", subject)
	}
	if !nostr.HasID(ev) {
		return ev, errors.New("the id is not that of the event")
	}
	if !nostr.Signed(ev) {
		return ev, errors.New("the signature is wrong")
	}
	return ev, nil
}

// lookAtRemoval checks a message that stands in the place of an event that has left the log.
func lookAtRemoval(m message) error {
	subject, err := proto.ParseEventSubject(m.subject)
	switch {
	case !nostr.IsHex64(m.removed):
		return errors.New("it removes what is no event")
	case len(m.data) > 0:
		return fmt.Errorf("it removes the event %s, and is not empty", m.removed)
	case err != nil:
		return err
	case !nostr.IsReplaceableKind(subject.Kind) && !nostr.IsAddressableKind(subject.Kind) && subject.Slot != m.removed[:proto.ShortIDLength]:
		return fmt.Errorf("it removes the event %s, which belongs elsewhere", m.removed)
	}
	return nil
}
