package limit

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/testonly"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

func openBus(t *testing.T) *bus.Bus {
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	fixture.Must(t, err)
	t.Cleanup(b.Close)
	return b
}

func openUsage(t *testing.T, b *bus.Bus, now *time.Time) *Usage {
	u, err := OpenUsage(t.Context(), b, slog.New(slog.DiscardHandler), func() time.Time { return *now })
	fixture.Must(t, err)
	fixture.Must(t, u.Load(t.Context()))
	return u
}

// TestUsage: a budget of a day, which outlives a restart and ends at midnight (UTC).
func TestUsage(t *testing.T) {
	t.Parallel()
	b, now := openBus(t), time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC)
	const mib = 1 << 20
	author := Charge{Party: Party{What: Events, Kind: Author, Name: "alice"}, Most: 2 * mib}
	relay := Charge{Party: Party{What: Events, Kind: Relay, Name: "wss://relay.example/ä"}, Most: 10 * mib}
	free := Charge{Party: Party{What: Events, Kind: ClientAddress, Name: "2001:db8::/64"}}
	u := openUsage(t, b, &now)
	u.Add(mib, author, relay, free)
	u.Add(mib, author, relay)
	check := func(u *Usage, factor, want int64, charges ...Charge) {
		t.Helper()
		left, party, until := u.Left(factor, charges...)
		if left != want {
			t.Errorf("%d bytes are left, want %d", left, want)
		}
		if midnight := now.Truncate(24 * time.Hour).Add(24 * time.Hour); left == 0 && party != author.Party || !until.Equal(midnight) {
			t.Errorf("%+v is free at %s, want %s", party, until, midnight)
		}
	}
	check(u, 1, 0, relay, author)
	check(u, 10, 18*mib, relay, author)
	check(u, 1, 8*mib, relay, free)
	fixture.Must(t, u.Save(t.Context()))
	again := openUsage(t, b, &now)
	check(again, 1, 0, relay, author)
	again.Add(mib, relay)
	fixture.Must(t, again.Save(t.Context()))
	check(openUsage(t, b, &now), 1, 7*mib, relay) // two have saved
	u.Add(3*mib, relay)
	fixture.Must(t, u.Save(t.Context()))
	u.Add(-2*mib, relay) // what was not stored
	fixture.Must(t, u.Save(t.Context()), again.Refresh(t.Context(), relay))
	check(again, 1, 6*mib, relay)
	now = now.Add(3 * time.Hour)
	check(again, 1, 2*mib, relay, author)
	check(openUsage(t, b, &now), 1, 2*mib, relay, author)
}

// TestMarks: above a mark the service is full, until there is room again. What cannot be looked at
// changes nothing.
func TestMarks(t *testing.T) {
	t.Parallel()
	why, failed := "", error(nil)
	m := NewMarks("test", slog.New(slog.DiscardHandler), prometheus.NewRegistry(),
		func(context.Context) (string, error) { return "", nil }, func(context.Context) (string, error) { return why, failed })
	look := func(want string) {
		t.Helper()
		if m.Look(t.Context()); m.Full() != want {
			t.Errorf("full: %q, want %q", m.Full(), want)
		}
	}
	look("")
	why = "no room"
	look("no room")
	why, failed = "", errors.New("gone")
	look("no room")
	failed = nil
	look("")
}

func TestLogMark(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	for range 3 {
		if _, err := b.JS.Publish(t.Context(), proto.SubjectEventsMark, make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	if full, err := Log(b, 0)(t.Context()); err != nil || full != "" {
		t.Errorf("of the store: %q, %v", full, err)
	}
	if full, err := Log(b, 1000)(t.Context()); err != nil || !strings.Contains(full, "NGIT_LOG_MAX_BYTES") {
		t.Errorf("of the setting: %q, %v", full, err)
	}
}

// TestDiskMark: a tenth of a disk stays free, and at least 1 GiB of a small one.
func TestDiskMark(t *testing.T) {
	t.Setenv(testonly.Prefix+"DISK_LEAST_FREE", "1")
	if full, err := Disk(t.TempDir())(t.Context()); err != nil || full != "" {
		t.Errorf("a disk with room: %q, %v", full, err)
	}
	t.Setenv(testonly.Prefix+"DISK_LEAST_FREE", strconv.Itoa(1<<60))
	if full, err := Disk(t.TempDir())(t.Context()); err != nil || !strings.Contains(full, "new data needs") {
		t.Errorf("a disk with less than must be free: %q, %v", full, err)
	}
	fixture.Must(t, os.Unsetenv(testonly.Prefix+"DISK_LEAST_FREE"))
	for all, want := range map[int64]int64{100 << 30: 10 << 30, 5 << 30: 1 << 30} {
		if least := leastFree(all); least != want {
			t.Errorf("%d bytes must be free of %d; want %d", least, all, want)
		}
	}
}

// TestTake: those who take at the same time share what is left.
func TestTake(t *testing.T) {
	t.Parallel()
	u := &Usage{now: time.Now, used: map[Party]*amount{}}
	author := Charge{Party{Git, Author, "a"}, 100}
	address := Charge{Party{Git, ClientAddress, "b"}, 0}
	var taken atomic.Int64
	var running sync.WaitGroup
	for range 30 {
		running.Go(func() {
			if u.Take(10, 2, author, address) {
				taken.Add(10)
			}
		})
	}
	running.Wait()
	left, _, _ := u.Left(2, author, address)
	if taken.Load() != 200 || left != 0 || u.used[address.Party].more != 200 {
		t.Errorf("taken %d, left %d, of the address %d", taken.Load(), left, u.used[address.Party].more)
	}
}
