package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"tendril.dev/cmd/tendril/export"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// checkLog looks at every message of the log, on all processors.
func (c *checker) checkLog(ctx context.Context) error {
	var looking errgroup.Group
	looking.SetLimit(runtime.GOMAXPROCS(0))
	told := func(done, of int) { c.Progress("events", done, of) }
	err := export.Each(ctx, c.Bus.JS, proto.StreamEvents, told, func(m bus.Message) error {
		if m.Subject != proto.SubjectEventsMark && m.Header.Get(proto.HeaderRemoved) == "" {
			c.report.Events++
		}
		looking.Go(func() error {
			if err := look(m); err != nil {
				c.report.found(Finding{Part: PartLog, What: fmt.Sprintf("message %d, %s", m.Seq, m.Subject), Problem: err.Error()}, false)
			}
			return nil
		})
		return nil
	})
	return errors.Join(err, looking.Wait())
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

// lookAtRemoval checks a message in the place of an event that has left the log.
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
