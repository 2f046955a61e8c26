package relayconn

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

// crowd are events of which so many lie in each second: a repository and its issues.
func crowd(n, perSecond int) (events []*nostr.Event) {
	person, at := fixture.NewPerson(), midnight-40*86400
	events = append(events, person.At(at).Sign(nostr.KindAnnouncement, "announcement", nostr.Tag{"d", "crowd"}))
	ref := fmt.Sprintf("30617:%s:crowd", person.PubKey)
	for i := range n {
		events = append(events, person.At(at+60*nostr.Timestamp(i/perSecond+1)).Sign(nostr.KindIssue, fmt.Sprint("issue ", i), nostr.Tag{"a", ref}))
	}
	return events
}

// otherNames are a repository, and root events and comments that name it in other ways than most.
func otherNames() (events []*nostr.Event) {
	person := fixture.NewPerson().At(midnight - 86400)
	sign := func(kind int, content string, tags ...nostr.Tag) *nostr.Event {
		ev := person.Sign(kind, content, tags...)
		events = append(events, ev)
		return ev
	}
	sign(nostr.KindAnnouncement, "announcement", nostr.Tag{"d", "x"})
	ref := fmt.Sprintf("30617:%s:x", person.PubKey)
	for _, name := range []string{"A", "q"} {
		root := sign(nostr.KindIssue, "issue by "+name, nostr.Tag{name, ref})
		sign(1111, "comment on issue by "+name, nostr.Tag{"E", root.ID})
	}
	return events
}

// quoted adds an event that quotes the repository.
func quoted(events []*nostr.Event) []*nostr.Event {
	ref := fmt.Sprintf("30617:%s:crowd", events[0].PubKey)
	quote := fixture.NewPerson().At(midnight-41*86400).Sign(1, "quote", nostr.Tag{"q", ref})
	return append(events, quote)
}

func reasonIf(filters []nostr.Filter, reason string, refuses func(nostr.Filter) bool) string {
	if slices.ContainsFunc(filters, refuses) {
		return reason
	}
	return ""
}

// longest is how many values the longest list of a filter has.
func longest(f nostr.Filter) (n int) {
	for _, values := range f.Tags {
		n = max(n, len(values))
	}
	return n
}

// TestOddRelays: of relays that do not do as they are asked all is here ten minutes after the
// start, without waiting for the daily one.
func TestOddRelays(t *testing.T) {
	t.Parallel()
	here := map[string]func(n int) bool{ // what is known at the start
		"it reconciles its newest only":                 func(n int) bool { return n == 0 || n == 60 },
		"it reconciles its newest only, which are here": func(n int) bool { return n == 0 || n > 40 },
		"it refuses more than 2 ids":                    func(n int) bool { return n%2 == 0 },
	}
	for name, row := range map[string]struct {
		odd    odd
		stored []*nostr.Event
	}{
		"until excludes its second":                     {odd{noNIP77: true, page: 5, exclusive: true}, crowd(40, 4)},
		"a second that fills a page":                    {odd{}, crowd(60, 30)},
		"roots by A and q":                              {odd{noNIP77: true}, otherNames()},
		"EOSE before the events":                        {odd{noNIP77: true, early: 2 * time.Second}, crowd(35, 1)},
		"EOSE twenty seconds before":                    {odd{noNIP77: true, early: 20 * time.Second}, crowd(15, 1)},
		"it reconciles its newest only":                 {odd{newest: 20}, crowd(60, 1)},
		"it reconciles its newest only, which are here": {odd{newest: 20}, crowd(60, 1)},
		"a filter shows nothing beside others": {odd{noNIP77: true, page: 10, hides: func(f nostr.Filter, n int) int {
			if n > 1 && len(f.Tags["q"]) > 0 {
				return 0
			}
			return f.Limit
		}}, quoted(crowd(40, 1))},
		"it refuses filters of more than 3 values": {odd{noNIP77: true, refuses: func(filters []nostr.Filter) string {
			return reasonIf(filters, "invalid: too many values", func(f nostr.Filter) bool { return longest(f) > 3 })
		}}, simulated},
		"it refuses more than 2 ids": {odd{refuses: func(filters []nostr.Filter) string {
			return reasonIf(filters, "error: filter item too large", func(f nostr.Filter) bool { return len(f.IDs) > 2 })
		}}, simulated},
		"it refuses limits over 4": {odd{noNIP77: true, refuses: func(filters []nostr.Filter) string {
			return reasonIf(filters, "invalid: filter limit too large", func(f nostr.Filter) bool { return f.Limit > 4 })
		}}, crowd(20, 1)},
		"it refuses more than a year": {odd{noNIP77: true, refuses: func(filters []nostr.Filter) string {
			return reasonIf(filters, "invalid: filter of too long a time", func(f nostr.Filter) bool {
				return f.Limit > 0 && f.IDs == nil && (f.Since == nil || f.Until == nil && nostr.Now()-*f.Since > 366*86400 || f.Until != nil && *f.Until-*f.Since > 366*86400)
			})
		}}, crowd(5, 1)},
		"it refuses more than 200 days": {odd{noNIP77: true, refuses: func(filters []nostr.Filter) string {
			return reasonIf(filters, "restricted: time range exceeds 200 days", func(f nostr.Filter) bool {
				return f.Limit > 0 && f.IDs == nil && (f.Since == nil || f.Until == nil && nostr.Now()-*f.Since > 200*86400 || f.Until != nil && *f.Until-*f.Since > 200*86400)
			})
		}}, crowd(40, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			simulate(t, row.odd, row.stored, func(m *simulation) {
				m.begin()
				if is := here[name]; is != nil { // so that there is something to reconcile
					m.mu.Lock()
					for n, ev := range row.stored {
						if is(n) && m.belongs(ev) {
							m.take(ev)
						}
					}
					m.mu.Unlock()
				}
				time.Sleep(10 * time.Minute)
				if missing := m.missing(); len(missing) > 0 {
					t.Errorf("%d events are missing: %q …", len(missing), missing[:min(3, len(missing))])
				}
			})
		})
	}
}

// TestPutOffAcrossAHandOver: what ingest puts off for ten minutes is here soon after, though another
// worker has taken over meanwhile and the relay does not reconcile.
func TestPutOffAcrossAHandOver(t *testing.T) {
	t.Parallel()
	stored := crowd(5, 1)
	for _, what := range []fault{cut, handover, kill} {
		t.Run(string(what), func(t *testing.T) {
			t.Parallel()
			simulate(t, odd{noNIP77: true}, stored, func(m *simulation) {
				m.putOff = map[string]time.Time{stored[3].ID: time.Now().Add(10 * time.Minute)}
				m.begin()
				time.Sleep(5 * time.Minute)
				m.mu.Lock()
				m.faults[m.messages+1] = what
				m.counts(m.conn)
				m.mu.Unlock()
				time.Sleep(8 * time.Minute)
				if missing := m.missing(); len(missing) > 0 {
					t.Errorf("missing: %q", missing)
				}
			})
		})
	}
}

// TestPublishedLate: what is published while the connection is cut for two seconds comes, however
// long before it was made: any time with NIP-77, two hours without.
func TestPublishedLate(t *testing.T) {
	t.Parallel()
	stored := crowd(40, 1)
	person := fixture.NewPerson()
	for ago, noNIP77 := range map[nostr.Timestamp]bool{40 * 60: true, 110 * 60: true, 30 * 86400: false} {
		t.Run(fmt.Sprint(ago, " s"), func(t *testing.T) {
			t.Parallel()
			simulate(t, odd{noNIP77: noNIP77}, stored, func(m *simulation) {
				m.begin()
				time.Sleep(10 * time.Minute)
				ref := fmt.Sprintf("30617:%s:crowd", stored[0].PubKey)
				late := person.At(nostr.Now()-ago).Sign(nostr.KindIssue, "late", nostr.Tag{"a", ref})
				m.mu.Lock() // both at once, or the worker is back before it is published, and gets it live
				m.hangUp()
				m.stored = append(m.stored, late)
				m.sort()
				m.mu.Unlock()
				time.Sleep(5 * time.Minute)
				if missing := m.missing(); len(missing) > 0 {
					t.Errorf("missing: %q", missing)
				}
			})
		})
	}
}
