package grace_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/grace"
	"tendril.dev/services/purgatory/repository"
)

const domain = "git.example.com"

var (
	alice = strings.Repeat("a1", 32)
	ref   = nostr.RepoRef{PubKey: alice, Identifier: "tree"}
)

func announcement(t *testing.T, at string) *nostr.Event {
	t.Helper()
	npub, err := nip19.EncodePublicKey(alice)
	if err != nil {
		t.Fatal(err)
	}
	ev := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: alice, Tags: nostr.Tags{
		{"d", "tree"}, {"clone", "https://" + at + "/" + npub + "/tree.git"}, {"relays", "wss://" + at}}}
	ev.ID = ev.GetID()
	return ev
}

func TestEndingOf(t *testing.T) {
	t.Parallel()
	here, elsewhere, before := announcement(t, domain), announcement(t, "other.example.org"), announcement(t, "old.example.com")
	other := announcement(t, domain)
	other.Tags[0][1] = "bush"
	for name, tc := range map[string]struct {
		last    *nostr.Event
		deleted bool
		want    grace.Ending
	}{
		"never announced":                    {nil, false, grace.Ending{}},
		"listed here, not deleted":           {here, false, grace.Ending{}},
		"deleted":                            {here, true, grace.Ending{Announcement: here.ID, Reason: grace.Deleted}},
		"moved away":                         {elsewhere, false, grace.Ending{Announcement: elsewhere.ID, Reason: grace.Moved}},
		"moved away and deleted":             {elsewhere, true, grace.Ending{Announcement: elsewhere.ID, Reason: grace.Deleted}},
		"the service has moved":              {before, false, grace.Ending{}},
		"the service has moved, and deleted": {before, true, grace.Ending{Announcement: before.ID, Reason: grace.Deleted}},
		"another repository's":               {other, true, grace.Ending{}},
		"no announcement at all":             {&nostr.Event{Kind: 1, PubKey: alice}, true, grace.Ending{}},
	} {
		isHere := func(a *nostr.Announcement) bool { return a.ListsService("old.example.com") || a.ListsService(domain) }
		if got := grace.EndingOf(ref, isHere, tc.last, tc.deleted); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// TestAnArchiveEndsOnlyByDeletion: what is archived is here wherever its owner moves it.
func TestAnArchiveEndsOnlyByDeletion(t *testing.T) {
	t.Parallel()
	archived := func(*nostr.Announcement) bool { return true }
	elsewhere := announcement(t, "other.example.org")
	if got := grace.EndingOf(ref, archived, elsewhere, false); got != (grace.Ending{}) {
		t.Errorf("moved: %+v", got)
	}
	if got, want := grace.EndingOf(ref, archived, elsewhere, true), (grace.Ending{Announcement: elsewhere.ID, Reason: grace.Deleted}); got != want {
		t.Errorf("deleted: %+v", got)
	}
}

func TestDeletes(t *testing.T) {
	t.Parallel()
	a := announcement(t, domain)
	a.CreatedAt = 1000
	a.ID = a.GetID()
	bob := strings.Repeat("b0", 32)
	request := func(kind int, author string, at nostr.Timestamp, tags ...nostr.Tag) *nostr.Event {
		return &nostr.Event{ID: strings.Repeat("1", 64), Kind: kind, PubKey: author, CreatedAt: at, Tags: tags}
	}
	address := "30617:" + alice + ":tree"
	for name, tc := range map[string]struct {
		request *nostr.Event
		want    bool
	}{
		"by id":                        {request(5, alice, 1, nostr.Tag{"e", a.ID}), true},
		"by id, among others":          {request(5, alice, 1, nostr.Tag{"e"}, nostr.Tag{"e", bob}, nostr.Tag{"e", a.ID, "wss://x"}), true},
		"by address":                   {request(5, alice, 2000, nostr.Tag{"a", address}), true},
		"by address, of the same time": {request(5, alice, 1000, nostr.Tag{"a", address}), true},
		"by address, before it":        {request(5, alice, 999, nostr.Tag{"a", address}), false},
		"by the address of another":    {request(5, alice, 2000, nostr.Tag{"a", address + "s"}), false},
		"by somebody else":             {request(5, bob, 2000, nostr.Tag{"a", address}, nostr.Tag{"e", a.ID}), false},
		"no request":                   {request(1, alice, 2000, nostr.Tag{"a", address}, nostr.Tag{"e", a.ID}), false},
		"of nothing":                   {request(5, alice, 2000), false},
	} {
		if got := grace.Deletes(tc.request, a); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
		found := slices.ContainsFunc(grace.DeletionsOf(a), func(f nostr.Filter) bool { return f.Matches(tc.request) })
		if found != tc.want {
			t.Errorf("%s: found by a filter: %t", name, found)
		}
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	const week = 7 * 24 * time.Hour
	ending := grace.Ending{Announcement: "one", Reason: grace.Deleted}
	noted := func(announcement string, age time.Duration, kept bool) *repository.Ended {
		return &repository.Ended{Announcement: announcement, Since: now.Add(-age), Counted: age, Seen: now, Kept: kept}
	}
	unseen := func(counted, unseen time.Duration) *repository.Ended {
		return &repository.Ended{Announcement: "one", Since: now.Add(-counted - unseen), Counted: counted, Seen: now.Add(-unseen)}
	}
	for name, tc := range map[string]struct {
		ending grace.Ending
		note   *repository.Ended
		grace  time.Duration
		step   grace.Step
		left   time.Duration // until it is over; 0 with Keep: no end
	}{
		"the log knows of no end":                   {grace.Ending{}, nil, week, grace.Keep, 0},
		"the log knows of no end, but was noted":    {grace.Ending{}, noted("one", 2*week, false), week, grace.Keep, 0},
		"just ended":                                {ending, nil, week, grace.Note, week},
		"another end than the one that was noted":   {ending, noted("before", 2*week, false), week, grace.Note, week},
		"another end of what an operator keeps":     {ending, noted("before", 2*week, true), week, grace.Keep, 0},
		"on its way":                                {ending, noted("one", week-time.Second, false), week, grace.Wait, time.Second},
		"over":                                      {ending, noted("one", week, false), week, grace.Remove, 0},
		"over, by a shorter grace":                  {ending, noted("one", time.Hour, false), 0, grace.Remove, -time.Hour},
		"noted by a clock that is ahead":            {ending, unseen(0, -30*24*time.Hour), week, grace.Count, week},
		"noted, and never counted":                  {ending, &repository.Ended{Announcement: "one", Since: now.Add(-time.Hour)}, week, grace.Wait, week - time.Hour},
		"counted a while ago":                       {ending, unseen(time.Hour, grace.CountEvery), week, grace.Count, week - time.Hour - grace.CountEvery},
		"the clock jumps forward by a month":        {ending, unseen(24*time.Hour, 30*24*time.Hour), week, grace.Count, 5 * 24 * time.Hour},
		"never counted, and a month is over":        {ending, &repository.Ended{Announcement: "one", Since: now.Add(-30 * 24 * time.Hour)}, week, grace.Count, 6 * 24 * time.Hour},
		"over within the time that nobody looked":   {ending, unseen(week-time.Hour, 2*time.Hour), week, grace.Remove, -time.Hour},
		"an operator has cancelled the removal":     {ending, noted("one", 2*week, true), week, grace.Keep, 0},
		"no grace at all, and nothing noted either": {ending, nil, 0, grace.Note, 0},
	} {
		step, until := grace.Decide(tc.ending, tc.note, tc.grace, now)
		want := now.Add(tc.left)
		if tc.step == grace.Keep {
			want = time.Time{}
		}
		if step != tc.step || !until.Equal(want) {
			t.Errorf("%s: %v until %v, want %v until %v", name, step, until, tc.step, want)
		}
	}
}

// TestTimeIsCounted: whatever clocks do, time is only counted while somebody looks, and what is
// counted stays counted.
func TestTimeIsCounted(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0).UTC()
	note := repository.Ended{Announcement: "one", Since: now}
	for _, step := range []struct{ jump, want time.Duration }{
		{12 * time.Hour, 12 * time.Hour},
		{-30 * 24 * time.Hour, 12 * time.Hour},
		{12 * time.Hour, 24 * time.Hour},
		{60 * 24 * time.Hour, 48 * time.Hour},
		{time.Hour, 49 * time.Hour},
	} {
		now = now.Add(step.jump)
		if note = grace.Counting(note, now); note.Counted != step.want || !note.Seen.Equal(now) {
			t.Errorf("after a step of %v: %v counted, up to %v; want %v", step.jump, note.Counted, note.Seen, step.want)
		}
		if until := grace.Until(note, 7*24*time.Hour, now); !until.Equal(now.Add(7*24*time.Hour - step.want)) {
			t.Errorf("after a step of %v it is kept until %v", step.jump, until)
		}
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	r := grace.NewRegistry()
	one, two, kept := ref, nostr.RepoRef{PubKey: alice, Identifier: "bush"}, nostr.RepoRef{PubKey: alice, Identifier: "leaf"}
	due := func(at time.Duration, want ...nostr.RepoRef) {
		t.Helper()
		if got := r.Due(now.Add(at)); !slices.Equal(got, want) {
			t.Errorf("due after %v: %v, want %v", at, got, want)
		}
	}
	due(time.Hour)
	r.Set(grace.Entry{Ref: one, Until: now.Add(2 * time.Minute)}, now.Add(time.Hour))
	r.Set(grace.Entry{Ref: two, Until: now.Add(time.Minute)}, time.Time{})
	r.Set(grace.Entry{Ref: kept}, time.Time{})
	due(0)
	due(time.Minute, two)
	due(time.Minute, two) // until something is done about it
	due(3*time.Minute, two, one)
	r.Postpone(two, now.Add(time.Hour))
	due(3*time.Minute, one)
	due(time.Hour, one, two)
	if e, ok := r.Get(two); !ok || !e.Until.Equal(now.Add(time.Minute)) {
		t.Errorf("the end of what is postponed: %v, %t", e.Until, ok)
	}
	r.Set(grace.Entry{Ref: one, Until: now.Add(2 * time.Hour)}, now.Add(time.Minute))
	due(time.Minute, one) // to be looked at
	r.Forget(one)
	due(2 * time.Minute)
	if ending, without := r.Count(); ending != 1 || without != 1 {
		t.Errorf("%d with an end, %d without; want one each", ending, without)
	}
	r.DropShard(proto.ShardOf(two.Identifier))
	due(2 * time.Hour)
	if _, ok := r.Get(two); ok {
		t.Error("a dropped shard's repository is still there")
	}
}

func TestRegistryPages(t *testing.T) {
	t.Parallel()
	r := grace.NewRegistry()
	var want []string
	for i := range 10 {
		owner := strings.Repeat(string("0123456789"[i])+"a", 32)
		r.Set(grace.Entry{Ref: nostr.RepoRef{PubKey: owner, Identifier: "tree"}}, time.Time{})
		want = append(want, "30617:"+owner+":tree")
	}
	var got []string
	for after := ""; ; {
		page := r.Shard(proto.ShardOf("tree"), after, 3)
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			after = e.Ref.String()
			got = append(got, after)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if list := r.Shard((proto.ShardOf("tree")+1)%proto.Shards, "", 3); len(list) != 0 {
		t.Errorf("another shard has %v", list)
	}
}
