package relayconn

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

func logOf(m *simulation) *slog.Logger {
	if os.Getenv("SIM_LOG") == "" {
		return quiet
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// simulated is what a relay has: three repositories with states, issues, comments on these, and
// replies to these, and events that quote them. Dates are those of a bubble.
var simulated = makeSimulated()

func makeSimulated() (events []*nostr.Event) {
	people := []*fixture.Person{fixture.NewPerson(), fixture.NewPerson(), fixture.NewPerson()}
	at := midnight - 86400
	sign := func(kind int, content string, tags ...nostr.Tag) *nostr.Event {
		at += 60
		ev := people[len(events)%len(people)].At(at).Sign(kind, content, tags...)
		events = append(events, ev)
		return ev
	}
	for r := range 3 {
		id := fmt.Sprint("repo", r)
		announcement := sign(nostr.KindAnnouncement, "announcement "+id, nostr.Tag{"d", id})
		ref := fmt.Sprintf("30617:%s:%s", announcement.PubKey, id)
		sign(nostr.KindState, "state "+id, nostr.Tag{"d", id})
		for i := range 12 {
			issue := sign(nostr.KindIssue, fmt.Sprintf("issue %d of %s", i, id), nostr.Tag{"a", ref})
			if i%3 == 0 {
				reply := sign(1111, fmt.Sprintf("comment on issue %d of %s", i, id), nostr.Tag{"E", issue.ID})
				for n := range i / 3 { // each names only the one before
					reply = sign(1111, fmt.Sprintf("reply %d below issue %d of %s", n, i, id), nostr.Tag{"e", reply.ID})
				}
				sign(1, fmt.Sprintf("quote of issue %d of %s", i, id), nostr.Tag{"q", issue.ID})
			}
		}
	}
	return events
}

// exchanges are the ways of a first exchange: nothing is known, so all goes by REQ; or half is
// known, so that it goes by NIP-77 where the relay does that.
var exchanges = map[string]struct {
	odd  odd
	here func(n int) bool
}{
	"REQ":    {odd{noNIP77: true}, func(int) bool { return false }},
	"NIP-77": {odd{}, func(n int) bool { return n%2 == 0 }},
}

// exchanged plays a whole exchange with faults, and returns how many messages it took and what of
// the relay is not here ten minutes later.
func exchanged(t *testing.T, way string, faults map[int]fault) (messages int, missing []string) {
	t.Helper()
	e := exchanges[way]
	simulate(t, e.odd, simulated, func(m *simulation) {
		m.faults = faults
		m.begin()
		m.mu.Lock()
		for n, ev := range simulated {
			if e.here(n) && m.belongs(ev) {
				m.take(ev)
			}
		}
		m.mu.Unlock()
		time.Sleep(10 * time.Minute)
		messages, missing = m.messages, m.missing()
	})
	return messages, missing
}

// TestNoHistoryIsSkipped plays a first exchange with a relay, and disturbs it at every message: the
// connection is cut, the claim passes on, or the process is killed and started again. Each time all
// that the relay has is here in the end, without waiting for the daily start.
func TestNoHistoryIsSkipped(t *testing.T) {
	t.Parallel()
	for way := range exchanges {
		whole, missing := exchanged(t, way, nil)
		if len(missing) > 0 {
			t.Fatalf("undisturbed, %d events are missing: %q", len(missing), missing)
		}
		for _, what := range []fault{cut, handover, kill} {
			t.Run(fmt.Sprint(way, " ", what), func(t *testing.T) {
				t.Parallel()
				lost, step, from := 0, 1, 1
				if os.Getenv("TENDRIL_CHAOS") == "" {
					// Other messages each day: half of them, of kills a sixth; a kill loses what a cut loses,
					// and less is written down. Two disturbances play all kinds too.
					step = map[fault]int{cut: 2, handover: 2, kill: 6}[what]
					from += time.Now().YearDay() % step
				}
				for n := from; n <= whole; n += step {
					if _, missing := exchanged(t, way, map[int]fault{n: what}); len(missing) > 0 {
						if lost++; lost <= 3 {
							t.Errorf("disturbed at message %d of %d, %d events are missing: %q …", n, whole, len(missing), missing[:min(3, len(missing))])
						}
					}
				}
				t.Logf("%d of %d runs lost something", lost, whole)
			})
		}
	}
}

// TestTwoDisturbances is the same with two disturbances of any kinds, at random places: a few, or
// as many as there is time for in `make chaos`.
func TestTwoDisturbances(t *testing.T) {
	t.Parallel()
	begin, kinds, rnd := time.Now(), []fault{cut, handover, kill}, rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	for way := range exchanges {
		whole, _ := exchanged(t, way, nil)
		long := time.Duration(0)
		if os.Getenv("TENDRIL_CHAOS") != "" {
			long = chaosTime(t)
		}
		runs := 0
		for ; runs < 20 || time.Since(begin) < long; runs++ {
			faults := map[int]fault{}
			for range 2 {
				faults[1+rnd.IntN(whole+whole/4)] = kinds[rnd.IntN(len(kinds))]
			}
			if _, missing := exchanged(t, way, faults); len(missing) > 0 {
				t.Errorf("%s, disturbed by %v, %d events are missing: %q …", way, faults, len(missing), missing[:min(3, len(missing))])
			}
		}
		begin = time.Now()
		t.Logf("%s: %d runs", way, runs)
	}
}
