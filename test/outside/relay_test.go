package outside

import (
	"strconv"
	"sync"
	"testing"

	"tendril.dev/lib/nostr"
)

// TestRelayAnswersWholeWhileItStores: an event that the relay had when it was asked is in its
// answer, though newer ones are stored meanwhile.
func TestRelayAnswersWholeWhileItStores(t *testing.T) {
	t.Parallel()
	relay, err := NewRelay()
	if err != nil {
		t.Fatal(err)
	}
	ann, err := NewPerson()
	if err != nil {
		t.Fatal(err)
	}
	oldest, err := ann.Sign(1000, 1, "the oldest")
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Publish(oldest); err != nil {
		t.Fatal(err)
	}
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() {
		for i := range 300 {
			ev, err := ann.Sign(nostr.Timestamp(1001+i), 1, strconv.Itoa(i))
			if err == nil {
				err = relay.Publish(ev)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		answer, err := relay.relay.QueryEvents[0](t.Context(), nostr.Filter{Kinds: []int{1}})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for ev := range answer {
			found = found || ev.ID == oldest.ID
		}
		if !found {
			t.Fatal("the oldest event is missing from an answer")
		}
	}
}
