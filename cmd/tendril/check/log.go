package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"tendril.dev/cmd/tendril/export"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// checkLog looks at every message of the log, on all processors.
func (c *checker) checkLog(ctx context.Context) error {
	told := func(done, of int) { c.Progress("events", done, of) }
	return export.Each(ctx, c.Bus.JS, proto.StreamEvents, told, func(messages []bus.Message) error {
		wrong := make([]error, len(messages))
		var all sync.WaitGroup
		processors := runtime.GOMAXPROCS(0)
		for first := range processors {
			all.Go(func() {
				for i := first; i < len(messages); i += processors {
					wrong[i] = look(messages[i])
				}
			})
		}
		all.Wait()
		for i, m := range messages {
			if m.Subject != proto.SubjectEventsMark && m.Header.Get(proto.HeaderRemoved) == "" {
				c.report.Events++
			}
			if wrong[i] != nil {
				c.found(Finding{Part: PartLog, What: fmt.Sprintf("message %d, %s", m.Seq, m.Subject), Problem: wrong[i].Error()}, nil)
			}
		}
		return nil
	})
}

// look says what is wrong with a message of the log.
func look(m bus.Message) error {
	if m.Subject == proto.SubjectEventsMark {
		return nil
	}
	if m.Header.Get(proto.HeaderRemoved) != "" {
		return lookAtRemoval(m)
	}
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(m.Data); err != nil {
		return fmt.Errorf("it is no event: %w", err)
	}
	if !nostr.IsHex64(ev.ID) || !nostr.IsHex64(ev.PubKey) {
		return errors.New("it is no event: its id or public key is not 64 lower-case hex digits")
	}
	if subject := proto.EventSubjectOf(ev).String(); subject != m.Subject {
		return fmt.Errorf("its event belongs at %s", subject)
	}
	if !nostr.HasID(ev) {
		return errors.New("the id is not that of the event")
	}
	if !nostr.Signed(ev) {
		return errors.New("the signature is wrong")
	}
	return nil
}

// lookAtRemoval checks a message that stands in the place of an event that has left the log.
func lookAtRemoval(m bus.Message) error {
	removed := m.Header.Get(proto.HeaderRemoved)
	subject, err := proto.ParseEventSubject(m.Subject)
	switch {
	case !nostr.IsHex64(removed):
		return errors.New("it removes what is no event")
	case len(m.Data) > 0:
		return fmt.Errorf("it removes the event %s, and is not empty", removed)
	case err != nil:
		return err
	case !nostr.IsReplaceableKind(subject.Kind) && !nostr.IsAddressableKind(subject.Kind) && subject.Slot != removed[:proto.ShortIDLength]:
		return fmt.Errorf("it removes the event %s, which belongs elsewhere", removed)
	}
	return nil
}
