package eventdb

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestHas: what is stored, and nothing that was never there, was replaced, has expired, or is no
// id.
func TestHas(t *testing.T) {
	t.Parallel()
	now := nostr.Timestamp(10)
	db, err := Open("", WithClock(func() nostr.Timestamp { return now }))
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

// TestHasWhileTheSieveIsMadeAnew: what is stored is found at once, whichever sieve is asked, and by
// those who ask while another one is made.
func TestHasWhileTheSieveIsMadeAnew(t *testing.T) {
	t.Parallel()
	db, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	stored := make(chan int, 1)
	var asking sync.WaitGroup
	asking.Go(func() {
		for n := range stored {
			for i := 1; i <= n; i++ {
				if has, err := hasOne(db, fmt.Sprintf("%064x", i)); err != nil || !has {
					t.Errorf("of %d events number %d is not found: %v", n, i, err)
					return
				}
			}
		}
	})
	for n := 1; n <= 50; n++ {
		db.mu.Lock()
		db.sieve.Load().room = 0 // too full from now on
		db.mu.Unlock()
		before := db.sieve.Load()
		if err := db.Apply([]Record{{Seq: uint64(n), Event: made(n, 1, 6)}}); err != nil {
			t.Fatal(err)
		}
		if n > 1 && db.sieve.Load() == before {
			t.Fatal("the sieve was not made anew: the test proves nothing")
		}
		stored <- n
	}
	close(stored)
	asking.Wait()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}
