package known_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
)

const week = 7 * 24 * time.Hour

var begun = time.Unix(1_800_000_000, 0)

func id(n int) string { return fmt.Sprintf("%032x%032x", n, n) }

func record(n int, missing ...string) proto.RejectedEvent {
	return proto.RejectedEvent{ID: id(n), Kind: n % 3, PubKey: id(100 + n%2), CreatedAt: nostr.Timestamp(n), Reason: "invalid: because", Missing: missing}
}

func empty(rules string) *known.Rejected {
	return known.NewRejected(nil, slog.New(slog.DiscardHandler), week, rules)
}

// log writes messages as the writer does.
type log struct {
	t   *testing.T
	x   *known.Rejected
	seq uint64
}

func (l *log) add(at time.Time, records ...proto.RejectedEvent) {
	l.t.Helper()
	for _, r := range records {
		l.read(r, l.x.Encode(r), at)
	}
}

func (l *log) read(r proto.RejectedEvent, data []byte, at time.Time) {
	l.seq++
	l.x.Apply(bus.Message{Seq: l.seq, Subject: subjectOf(r), Data: data, Time: at})
}

func subjectOf(r proto.RejectedEvent) string {
	return proto.RejectedSubject{Kind: r.Kind, ShortID: proto.ShortID(r.ID)}.String()
}

func TestRejectionsAreRememberedForAWeek(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("")}
	wants := func(n int, at time.Time, want bool, left int) {
		t.Helper()
		if r, ok := l.x.Find(id(n), at); ok != want || ok && r.Reason != "invalid: because" || l.x.Len() != left {
			t.Errorf("%d: %+v, %v; %d are left, want %v, %d", n, r, ok, l.x.Len(), want, left)
		}
	}
	l.add(begun, record(1))
	l.add(begun.Add(time.Hour), record(2))
	wants(1, begun.Add(week-1), true, 2)
	wants(1, begun.Add(week), false, 2)
	wants(3, begun, false, 2)
	l.add(begun.Add(2*time.Hour), record(2)) // rejected again, its time begins once more
	l.add(begun.Add(week+time.Hour), record(3))
	wants(2, begun.Add(week+time.Hour), true, 2)
	l.add(begun.Add(week+2*time.Hour), record(4))
	wants(2, begun.Add(week+2*time.Hour), false, 2)
	if len(l.x.Matching(nostr.Filter{IDs: []string{id(3)}}, begun.Add(2*week+time.Hour))) > 0 {
		t.Error("one matches that is too old")
	}
}

// TestExpiryIsRememberedLongerEachTime: a host that was down for an hour costs a day.
func TestExpiryIsRememberedLongerEachTime(t *testing.T) {
	t.Parallel()
	l, at := &log{t: t, x: empty("")}, begun
	for times, days := range []int{1, 2, 4, 7, 7} {
		if got := l.x.Expired(id(1)); got != times {
			t.Fatalf("it has expired %d times, want %d", got, times)
		}
		r := record(1)
		r.Expired = times + 1
		l.add(at, r)
		over := at.Add(time.Duration(days) * 24 * time.Hour)
		_, before := l.x.Find(id(1), over.Add(-1))
		_, still := l.x.Find(id(1), over)
		if !before || still {
			t.Errorf("after %d times it is remembered for %d days: %v, and longer: %v", times+1, days, before, still)
		}
		at = over.Add(24 * time.Hour)
		l.add(at, record(2)) // time goes on
	}
}

func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("")}
	wants := func(key string, want ...string) {
		t.Helper()
		var got []string
		events, _ := l.x.Waiting(key, 10, func(string) bool { return false })
		for _, r := range events {
			got = append(got, r.ID)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s is missed by %v, want %v", key, got, want)
		}
	}
	l.add(begun, record(1, "d:tree", id(9)), record(2, "d:tree"), record(3, "d:bush"))
	wants("d:tree", id(1), id(2))
	l.read(record(1), nil, begun) // taken back
	wants("d:tree", id(2))
	wants(id(9))
	l.add(begun, record(1, "d:tree"), record(1, "d:tree")) // again and again
	wants("d:tree", id(1), id(2))
	others := func(name string) bool { return name == id(2) }
	for most, left := range []bool{true, false, false} {
		if some, more := l.x.Waiting("d:tree", most, others); len(some) != min(most, 1) || more != left {
			t.Errorf("%d of at most %d, more: %t", len(some), most, more)
		}
	}
	if _, ok := l.x.Find(id(3), begun); !ok || l.x.Len() != 3 || l.x.Seq() != l.seq {
		t.Errorf("%d at %d", l.x.Len(), l.x.Seq())
	}
}

// TestTheOldestRejectionsGo: what is remembered has a bound, in entries and the keys that they miss
// now.
func TestTheOldestRejectionsGo(t *testing.T) {
	t.Parallel()
	l, keys := &log{t: t, x: empty("")}, strings.Split(strings.Repeat("x", 600), "")
	for n := range keys {
		keys[n] += fmt.Sprint(n)
	}
	for n := range 1150 {
		l.add(begun, record(max(0, n-300), keys...)) // the first again and again
		if _, first := l.x.Find(id(0), begun); n == 1100 && !first || n == 1149 && (first || l.x.Len() < 800) {
			t.Errorf("with %d the first is there: %t, of %d", n, first, l.x.Len())
		}
	}
}

func TestWhatIsNoRejectionIsNotRead(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("now")}
	l.add(begun, record(1))
	l.read(record(1), nil, begun)
	l.seq = 0
	l.add(begun, record(1)) // the follower reads what the writer has applied already
	good, others := l.x.Encode(record(1)), empty("then").Encode(record(1))
	for i, m := range []bus.Message{
		{Subject: "grasp.rejected.x", Data: good}, {Subject: subjectOf(record(1)), Data: []byte("{")}, {Subject: subjectOf(record(1)), Data: []byte("{}")},
		{Subject: subjectOf(record(2)), Data: good}, {Subject: subjectOf(record(1)), Data: []byte(strings.Replace(string(good), record(1).PubKey, "zz", 1))},
		{Subject: subjectOf(record(1)), Data: others}, // by other rules
	} {
		m.Seq, m.Time = uint64(10+i), begun
		if l.x.Apply(m); l.x.Len() != 0 || l.x.Seq() != m.Seq {
			t.Errorf("message %d was read", i)
		}
	}
}
