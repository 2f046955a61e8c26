// Package held reads the bucket grasp-held: the events that wait in purgatory. It decodes the
// entries and folds them into a set in memory. Every service that needs held events uses it; only
// the writer of ingest changes the bucket.
package held

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Entry is a held event. Entries are values: a change is a new Entry with the same key.
type Entry struct {
	proto.Held
	Key string // in the bucket

	// Announcement is the parsed event if it is an announcement.
	Announcement *nostr.Announcement
}

// Change is one change of the bucket: an entry was written, or its key was deleted.
type Change struct {
	Seq    uint64 // of its message in the bucket's stream
	Key    string
	Before *Entry // what the set had; only [Set.Read] fills it in
	Entry  *Entry // nil: deleted
}

// Identifier is the identifier that the changed entry waits for.
func (c Change) Identifier() string {
	switch {
	case c.Entry != nil:
		return c.Entry.Identifier
	case c.Before != nil:
		return c.Before.Identifier
	}
	return ""
}

// NewEntry names the key of a held event and parses it if it is an announcement.
func NewEntry(h proto.Held) (*Entry, error) {
	if h.Event == nil {
		return nil, errors.New("held entry: no event")
	}
	var parsed *nostr.Announcement
	if h.Event.Kind == nostr.KindAnnouncement {
		var err error
		if parsed, err = nostr.ParseAnnouncement(h.Event); err != nil {
			return nil, fmt.Errorf("held entry: %w", err)
		}
	}
	return Named(h, parsed)
}

// Named names the key of a held event, which was parsed if it is an announcement.
func Named(h proto.Held, parsed *nostr.Announcement) (*Entry, error) {
	key, err := proto.HeldKey(h.Identifier, h.Event)
	if err != nil {
		return nil, fmt.Errorf("held entry: %w", err)
	}
	return &Entry{Held: h, Key: key, Announcement: parsed}, nil
}

// Decode reads the value of a key of the bucket.
func Decode(key string, value []byte) (*Entry, error) {
	var h proto.Held
	if err := json.Unmarshal(value, &h); err != nil {
		return nil, fmt.Errorf("held entry %s: %w", key, err)
	}
	e, err := NewEntry(h)
	if err != nil {
		return nil, err
	}
	if e.Key != key {
		return nil, fmt.Errorf("held entry %s: its event belongs at %s", key, e.Key)
	}
	return e, nil
}

// ReadChange reads a message of the bucket's stream; false if it is no change of an entry. After an
// error the change is a deletion: what cannot be read is not held.
func ReadChange(m bus.Message) (c Change, ok bool, err error) {
	key, ok := strings.CutPrefix(m.Subject, proto.KVSubject(proto.BucketHeld, ""))
	if !ok || key == proto.HeldMarkKey {
		return Change{}, false, nil
	}
	c = Change{Seq: m.Seq, Key: key}
	if !m.Deletes() {
		c.Entry, err = Decode(key, m.Data)
	}
	return c, true, err
}

// Encode writes the entry's value. Like all our JSON it leaves <, > and & as they are.
func (e *Entry) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	shortest := struct {
		Event json.RawMessage `json:"event"` // in place of Held's: it must not outgrow what was taken
		proto.Held
	}{nostr.Encode(e.Event), e.Held}
	if err := enc.Encode(shortest); err != nil {
		return nil, fmt.Errorf("write held entry %s: %w", e.Key, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Address is that of the held event; false for kinds that have none.
func (e *Entry) Address() (nostr.Address, bool) { return nostr.AddressOf(e.Event) }
