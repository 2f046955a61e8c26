package abuse

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

// TestConnectionsOfOneAddress: one address has no more connections than its share, and a client
// that comes from another one does not notice.
func TestConnectionsOfOneAddress(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"NGIT_MAX_CONNECTIONS": "300", "NGIT_MAX_CONNECTIONS_PER_IP": "64"})
	n := moveIn(t, p)
	opened, refused := 0, 0
	for i := range 400 {
		// IPv6: one customer has a /64, so that all of its addresses are one.
		from := fmt.Sprintf("2001:db8:1:2:%x::%x", i, i+1)
		if i%2 == 0 {
			from = stranger(1)
		}
		if _, err := world.TryDialFrom(t, p.Relay(), from); err != nil {
			refused++
		} else {
			opened++
		}
	}
	t.Logf("%d connections opened, %d refused", opened, refused)
	if opened > 2*64 {
		t.Errorf("two strangers have %d connections, want at most 64 each", opened)
	}
	n.unhurt(2)
}

// TestEventsOfOneAddress: one address sends no more events a minute than its share, however many
// connections it has.
func TestEventsOfOneAddress(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	n := moveIn(t, p)
	mallory := world.NewPerson()
	taken, refused, began := 0, 0, time.Now()
	for range 10 {
		s := world.DialFrom(t, p.Relay(), stranger(1))
		for range 60 {
			ok, message := s.Submit(mallory.Sign(1621, "buy", nostr.Tag{"a", n.who.Address(home)}))
			switch {
			case ok:
				taken++
			case strings.HasPrefix(message, "rate-limited:"):
				refused++
			default:
				t.Fatalf("answered %q", message)
			}
		}
		s.Close()
	}
	took := time.Since(began)
	t.Logf("%d events taken, %d refused, in %v", taken, refused, took.Round(time.Second))
	// A minute's share at once, and another one with each minute that goes by.
	if most := int(eventsOfAddress * (1 + took.Minutes())); taken > most {
		t.Errorf("ten connections of one address sent %d events in %v, want %d at most", taken, took, most)
	}
	n.unhurt(2)
}

// TestForgedAddresses: who is no trusted proxy cannot choose the address that it is counted by.
func TestForgedAddresses(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"NGIT_TRUSTED_PROXIES": "192.0.2.200/32", "NGIT_MAX_CONNECTIONS_PER_IP": "8"})
	opened := 0
	for i := range 40 {
		if _, err := world.TryDialFrom(t, p.Relay(), stranger(i)); err == nil {
			opened++
		}
	}
	if opened != 8 {
		t.Errorf("%d connections of one address that says it is forty, want 8", opened)
	}
}

// TestExpensiveQuestions: filters that cost as much as is allowed, asked again and again on many
// connections, do not keep others from their answers.
func TestExpensiveQuestions(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	n := moveIn(t, p)
	values := make([]string, 2000)
	for i := range values {
		values[i] = randomHex(32)
	}
	filter := map[string]any{"#e": values, "kinds": []int{1, 1111, 1621, 1617, 30617}}
	stop := make(chan struct{})
	defer close(stop)
	for i := range 50 {
		s := world.DialFrom(t, p.Relay(), stranger(i%5))
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.TrySend("COUNT", "c", filter, filter); err != nil {
					return
				}
				if _, err := s.TryNext(); err != nil {
					return
				}
			}
		}()
	}
	n.unhurt(3)
}
