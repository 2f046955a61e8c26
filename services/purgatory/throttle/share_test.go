package throttle_test

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/services/purgatory/throttle"
)

func newShared(atOnce int) *throttle.Throttle {
	return throttle.New(throttle.Limits{AtOnce: atOnce, Default: throttle.Limit{Concurrent: 1000, Rate: 1000}}, alone)
}

// TestShares: no owner of servers, no network and no author has more than a quarter of all
// requests, at least one, and all of them together have no more than there are.
func TestShares(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		atOnce int
		domain func(n int) string
		who    func(n int) throttle.Who
		want   int
	}{
		{"one host", 16, func(int) string { return "git.example.org" }, byAny, 4},
		{"hosts of one domain", 16, func(n int) string { return fmt.Sprintf("a%d.b%d.example.co.uk", n, n) }, byAny, 4},
		{"hosts below a public suffix", 16, func(n int) string { return fmt.Sprintf("h%d.github.io", n) }, byAny, 16},
		{"addresses of one network", 16, func(n int) string { return fmt.Sprintf("198.51.100.%d", n) }, byAny, 4},
		{"addresses of one IPv6 network", 16, func(n int) string { return fmt.Sprintf("2001:db8:1:%x::%x", n, n) }, byAny, 4},
		{"one author", 16, unlike, func(int) throttle.Who { return by("a") }, 4},
		{"one client with many keys", 16, unlike, func(n int) throttle.Who { return throttle.Who{Author: unlike(n), Client: "192.0.2.1"} }, 4},
		{"everybody another", 16, unlike, byAny, 16},
		{"room for one", 1, unlike, byAny, 1},
		{"room for two, one host", 2, func(int) string { return "h" }, byAny, 1},
	} {
		th := newShared(tc.atOnce)
		n := 0
		for i := range 100 {
			if _, ok := th.Try(tc.domain(i), tc.who(i)); ok {
				n++
			}
		}
		if n != tc.want {
			t.Errorf("%s: %d at once, want %d", tc.name, n, tc.want)
		}
		th.Close()
	}
}

func by(author string) throttle.Who { return throttle.Who{Author: author} }

func byAny(n int) throttle.Who { return by(unlike(n)) }

func unlike(n int) string { return fmt.Sprintf("%d.example%d.org", n, n) }

// TestManyNamesOfOneAddress: names that have nothing in common but the network that they lead to
// have one share of all requests, from the moment when that is known.
func TestManyNamesOfOneAddress(t *testing.T) {
	t.Parallel()
	th := newShared(16)
	defer th.Close()
	goOn := 0
	for i := range 8 {
		turn, ok := th.Try(unlike(i), by(unlike(i)))
		if !ok {
			t.Fatalf("the first request to server %d is not admitted", i)
		}
		if turn.Reached(netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", i))) {
			goOn++
		} else {
			turn.End()
		}
	}
	if goOn != 4 {
		t.Errorf("%d requests to one network go on, want 4", goOn)
	}
	if _, ok := th.Try(unlike(7), by("somebody")); ok {
		t.Error("a server of that network is asked again though it is known where it is")
	}
	if _, ok := th.Try("elsewhere.example", by("somebody")); !ok {
		t.Error("another server is not asked")
	}
}

// TestWhoHadNoTurnForLongestIsNext: first those who had none, and of all others the one whose last
// turn is longest ago: a host with a thousand identifiers, or an author with as many, is one among
// others.
func TestWhoHadNoTurnForLongestIsNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newShared(1)
		defer th.Close()
		busy, _ := th.Try("busy.example", by("x"))
		var mu sync.Mutex
		var order []string
		join := func(domain, identifier, author string) {
			th.Join(domain, identifier, by(author), func(turn *throttle.Turn) {
				defer turn.End()
				mu.Lock()
				order = append(order, identifier)
				mu.Unlock()
				time.Sleep(time.Second)
			})
		}
		for i := range 1000 {
			join("crowd.example", fmt.Sprint("crowd", i), unlike(i))
			join(unlike(i), fmt.Sprint("author", i), "author")
		}
		time.Sleep(time.Minute)
		join("normal.example", "normal", "normal")
		join("crowd.example", "other", "normal")
		busy.End()
		time.Sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(order) != 11 && len(order) != 10 || order[0] != "crowd0" || order[1] != "author0" {
			t.Fatalf("served %v", order)
		}
		if at := slices.Index(order, "normal"); at != 2 {
			t.Errorf("who came later to a server of its own is served at place %d of %v", at, order)
		}
	})
}
