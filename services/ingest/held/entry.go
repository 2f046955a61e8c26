// Package held knows the events that wait in purgatory: the bucket grasp-held, as a set in memory.
// Every replica of ingest follows the bucket; only the writer changes it.
package held

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"tendril.dev/lib/nip34"
	"tendril.dev/lib/rawevent"
	"tendril.dev/proto"
)

// Entry is a held event. Entries are values: a change is a new Entry with the same key.
type Entry struct {
	proto.Held
	Key string // in the bucket

	// Announcement is the event, read, where it is one.
	Announcement *nip34.Announcement

	weight int // about what it takes in memory, in bytes
}

// NewEntry names the key of a held event and reads it where it is an announcement.
func NewEntry(h proto.Held) (*Entry, error) {
	if h.Event == nil {
		return nil, errors.New("held entry: no event")
	}
	key, err := proto.HeldKeyOf(h.Identifier, h.Event).Key()
	if err != nil {
		return nil, fmt.Errorf("held entry: %w", err)
	}
	e := &Entry{Held: h, Key: key, weight: weightOf(h.Event)}
	if h.Event.Kind == nip34.KindAnnouncement {
		if e.Announcement, err = nip34.ParseAnnouncement(h.Event); err != nil {
			return nil, fmt.Errorf("held entry: %w", err)
		}
	}
	return e, nil
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

// Encode writes the entry's value. Like all JSON of ours it leaves <, > and & as they are.
func (e *Entry) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	shortest := struct {
		Event json.RawMessage `json:"event"` // in place of Held's: it must not outgrow what was taken
		proto.Held
	}{rawevent.Encode(e.Event), e.Held}
	if err := enc.Encode(shortest); err != nil {
		return nil, fmt.Errorf("write held entry %s: %w", e.Key, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Address is that of the held event; false for kinds that have none.
func (e *Entry) Address() (nip34.Address, bool) { return nip34.AddressOf(e.Event) }
