package known_test

import (
	"encoding/hex"
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

var start = time.Unix(1_800_000_000, 0)

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
		data, err := l.x.Encode(r)
		if err != nil {
			l.t.Fatal(err)
		}
		l.read(r, data, at)
	}
}

func (l *log) takeBack(at time.Time, n int) { l.read(record(n), nil, at) }

func (l *log) read(r proto.RejectedEvent, data []byte, at time.Time) {
	l.seq++
	subject := proto.RejectedSubject{Kind: r.Kind, ShortID: proto.ShortID(r.ID)}.String()
	l.x.Apply(bus.Message{Seq: l.seq, Subject: subject, Data: data, Time: at})
}

func waiting(x *known.Rejected, key string) []string {
	return slices.Sorted(slices.Values(x.Waiting(key)))
}

func TestIndexRemembersForAWeek(t *testing.T) {
	t.Parallel()
	x := empty("")
	l := &log{t: t, x: x}
	l.add(start, record(1))
	l.add(start.Add(time.Hour), record(2))
	if r, ok := x.Find(id(1), start.Add(week-1)); !ok || r.Reason != "invalid: because" {
		t.Errorf("%+v, %v", r, ok)
	}
	if _, ok := x.Find(id(1), start.Add(week)); ok {
		t.Error("remembered for longer than a week")
	}
	if _, ok := x.Find(id(3), start); ok {
		t.Error("an event that was never rejected")
	}
	l.add(start.Add(2*time.Hour), record(2)) // rejected again, its time begins once more
	l.add(start.Add(week+time.Hour), record(3))
	if _, ok := x.Find(id(2), start.Add(week+time.Hour)); !ok || x.Len() != 2 {
		t.Errorf("%d are left, want 2; forgotten by its first time: %v", x.Len(), !ok)
	}
	l.add(start.Add(week+2*time.Hour), record(4))
	if x.Len() != 2 {
		t.Errorf("%d are left, want 2", x.Len())
	}
}

func TestIndexKnowsWhatIsMissing(t *testing.T) {
	t.Parallel()
	x := empty("")
	l := &log{t: t, x: x}
	l.add(start, record(1, "d:tree", id(9)), record(2, "d:tree"), record(3, "d:bush"))
	if got := waiting(x, "d:tree"); !slices.Equal(got, []string{id(1), id(2)}) {
		t.Errorf("waiting for the tree: %v", got)
	}
	l.takeBack(start, 1)
	if got := waiting(x, "d:tree"); !slices.Equal(got, []string{id(2)}) {
		t.Errorf("after one was taken back: %v", got)
	}
	if waiting(x, id(9)) != nil {
		t.Error("an id that no entry misses now")
	}
	l.add(start, record(1, "d:tree"), record(1, "d:tree")) // again and again
	if got := waiting(x, "d:tree"); !slices.Equal(got, []string{id(1), id(2)}) {
		t.Errorf("after one was rejected again: %v", got)
	}
	if _, ok := x.Find(id(3), start); !ok || x.Len() != 3 || x.Seq() != l.seq {
		t.Errorf("%d at %d", x.Len(), x.Seq())
	}
}

func TestIndexReadsOnceAndStrictly(t *testing.T) {
	t.Parallel()
	x := empty("")
	l := &log{t: t, x: x}
	l.add(start, record(1))
	l.takeBack(start, 1)
	l.seq = 0
	l.add(start, record(1)) // the follower reads what the writer has applied already
	if x.Len() != 0 {
		t.Error("an old message was read again")
	}
	good, err := x.Encode(record(1))
	if err != nil {
		t.Fatal(err)
	}
	subject := proto.RejectedSubject{Kind: 1, ShortID: proto.ShortID(id(1))}.String()
	other := proto.RejectedSubject{Kind: 1, ShortID: proto.ShortID(id(2))}.String()
	for i, m := range []bus.Message{
		{Subject: "grasp.rejected.x", Data: good}, {Subject: subject, Data: []byte("{")}, {Subject: subject, Data: []byte("{}")},
		{Subject: other, Data: good}, {Subject: subject, Data: []byte(strings.Replace(string(good), record(1).PubKey, "zz", 1))},
	} {
		m.Seq = uint64(10 + i)
		if x.Apply(m); x.Len() != 0 {
			t.Errorf("message %d was read", i)
		}
	}
	if x.Len() != 0 || x.Seq() != 14 {
		t.Errorf("%d entries at %d", x.Len(), x.Seq())
	}
}

func TestIndexMatching(t *testing.T) {
	t.Parallel()
	x := empty("")
	l := &log{t: t, x: x}
	for n := range 12 {
		l.add(start, record(n))
	}
	since, until := nostr.Timestamp(3), nostr.Timestamp(8)
	for _, tc := range []struct {
		f    nostr.Filter
		want int
	}{
		{nostr.Filter{}, 12},
		{nostr.Filter{Kinds: []int{1}}, 4},
		{nostr.Filter{Authors: []string{id(100)}}, 6},
		{nostr.Filter{Since: &since, Until: &until}, 6},
		{nostr.Filter{IDs: []string{id(5), id(50)}}, 1},
		{nostr.Filter{Tags: nostr.TagMap{"a": {"x"}}}, 12},
		{nostr.Filter{Kinds: []int{1}, Since: &since, Tags: nostr.TagMap{"a": {"x"}}}, 3},
	} {
		items := x.Matching(tc.f, start)
		for _, i := range items {
			if hex.EncodeToString(i.ID[:]) != id(int(i.CreatedAt)) {
				t.Errorf("%+v", i)
			}
		}
		if len(items) != tc.want {
			t.Errorf("%s: %d, want %d", tc.f, len(items), tc.want)
		}
	}
	if len(x.Matching(nostr.Filter{}, start.Add(week))) > 0 {
		t.Fatal("too old")
	}
}

func TestRejectionsByOtherRulesDoNotCount(t *testing.T) {
	t.Parallel()
	l := &log{t: t, x: empty("now")}
	l.add(start, record(1))
	data, err := empty("then").Encode(record(1))
	if l.read(record(1), data, start); err != nil || l.x.Len() != 0 {
		t.Errorf("%d are known, %v; want none", l.x.Len(), err)
	}
}
