package wire

import (
	"context"

	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/nostr"
)

// Inbox keeps what has come from a relay until the session hears it. Who reads the connection and
// who hears the messages so wait for each other only where one is far ahead, and not at every
// message. What waits is bounded in messages and in bytes as they lie in memory: where it is full,
// nothing more is read from the relay.
type Inbox struct {
	messages chan Message
	room     *semaphore.Weighted
}

const (
	inboxMessages = 64
	inboxBytes    = 64 << 10
	// messageOverhead is about how many bytes a message takes beside what it says.
	messageOverhead = 256
)

// NewInbox makes an empty inbox, for one connection.
func NewInbox() *Inbox {
	return &Inbox{messages: make(chan Message, inboxMessages), room: semaphore.NewWeighted(inboxBytes)}
}

// Messages returns the messages in the order in which they were put. Who takes one calls its Heard.
func (i *Inbox) Messages() <-chan Message { return i.messages }

// Fill puts in what read reads when there is room for it, and gives its error. A message that is
// larger than the whole inbox waits until it is alone. When read has ended it waits until
// everything has been heard, or ctx ends: what a relay says last may be why it goes.
func (i *Inbox) Fill(ctx context.Context, read func(ctx context.Context, fn func(Message) error) error) error {
	err := read(ctx, func(m Message) error {
		m.inbox, m.room = i, m.size()
		if err := i.room.Acquire(ctx, m.room); err != nil {
			return err
		}
		select {
		case i.messages <- m:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if i.room.Acquire(ctx, inboxBytes) == nil {
		i.room.Release(inboxBytes)
	}
	return err
}

// Heard says that a message has left the inbox, in which it took up room, if it came by one.
func (m *Message) Heard() {
	if m.inbox != nil {
		m.inbox.room.Release(m.room)
		m.inbox = nil
	}
}

// size is about how many bytes of memory a message takes, and at most what an inbox has.
func (m *Message) size() int64 {
	n := int64(messageOverhead + len(m.Sub) + len(m.Frame) + len(m.Reason))
	if m.Event != nil {
		n += nostr.Memory(m.Event)
	}
	return min(n, inboxBytes)
}
