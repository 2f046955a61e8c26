package eventdb

import (
	"errors"
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestHas: what is stored, and nothing that was never there, was replaced, has expired, or is no
// id.
func TestHas(t *testing.T) {
	t.Parallel()
	now := nostr.Timestamp(10)
	db, err := Open("", Options{Now: func() nostr.Timestamp { return now }})
	if err != nil {
		t.Fatal(err)
	}
	d := nostr.Tag{"d", "x"}
	recs := []Record{
		{Seq: 1, Event: made(1, 30617, 6, d)}, {Seq: 2, Event: made(2, 30617, 7, d)},
		{Seq: 3, Event: made(3, 1, 6, nostr.Tag{"expiration", "50"})},
	}
	if err := db.Apply(recs); err != nil {
		t.Fatal(err)
	}
	look := func(want map[string]bool) {
		t.Helper()
		for id, stored := range want {
			if has, err := hasOne(db, id); err != nil || has != stored {
				t.Errorf("%.70q is stored: %v, %v", id, has, err)
			}
		}
	}
	id := func(n int) string { return fmt.Sprintf("%064x", n) }
	look(map[string]bool{id(1): false, id(2): true, id(3): true, id(4): false})
	now = 100
	look(map[string]bool{id(2): true, id(3): false})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if has, err := hasOne(db, id(2)); has || !errors.Is(err, ErrClosed) {
		t.Errorf("a closed index answers %v, %v", has, err)
	}
}

func hasOne(db *DB, eventID string) (bool, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return false, err
	}
	has, err := db.HasEach([][32]byte{eid})
	return len(has) == 1 && has[0], err
}
