package writer

import (
	"fmt"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// begun is a term that has begun, with lanes that nothing is fetched into.
func begun(t *testing.T) *term {
	t.Helper()
	r := standby(t, openBus(t), "a", testSettings())
	w := &term{Writer: r.Writer, scheduler: newScheduler(newLanes(), &r.rechecks)}
	must(t, w.begin(r.ctx))
	return w
}

// puts hands a pack of events to a lane.
func (t *term) puts(tt *testing.T, lane int, name proto.Lane, events ...*nostr.Event) {
	h := header(proto.HeaderSource, string(proto.SourceDaily))
	t.scheduler.put(tt.Context(), lane, readPack(&message{subject: name.Subject(), header: h, data: joined(tt, events)}))
}

// TestUrgentOvertakesRechecks: with any number of rechecks left over, of any class, and with bulk
// packs behind them, an urgent event is decided after one batch at most. That batch is short where
// the rechecks are bulk.
func TestUrgentOvertakesRechecks(t *testing.T) {
	t.Parallel()
	for _, cause := range []class{bulk, urgent} {
		for _, count := range []int{1, 20, 100, commitSize, 3 * commitSize} {
			t.Run(fmt.Sprintf("%d of class %d", count, cause), func(t *testing.T) {
				t.Parallel()
				w := begun(t)
				w.puts(t, laneSync, proto.LaneSyncDaily, manyGrasps(10, 20)...)
				for _, ev := range manyGrasps(1000, count) {
					w.rechecks.add(cause, policy.Release(ev))
				}
				for n := range 4 { // and so again and again, until the rechecks are done and after
					user := manyGrasps(n, 1)[0]
					w.puts(t, laneUser, proto.LaneUser, user)
					var before []int
					for {
						b, err := w.gather(t.Context())
						must(t, err)
						is := func(x decided) bool { return x.candidate.Event.ID == user.ID }
						if slices.ContainsFunc(b.decided, is) {
							break
						}
						before = append(before, len(b.decided))
						if len(before) < 30 { // each batch heals more, as comments heal replies
							for _, ev := range manyGrasps(5000+100*len(before), 20) {
								w.rechecks.add(cause, policy.Release(ev))
							}
						}
					}
					short := commitSize / bulkShare
					if cause == urgent && count <= mostUrgentRechecks {
						short = commitSize
					}
					if len(before) > 1 || len(before) == 1 && before[0] > short {
						t.Errorf("the urgent event %d is decided after batches of %v", n, before)
					}
				}
			})
		}
	}
}

// TestClassesAlternate: where work of both classes waits, batches of them take turns, and those of
// bulk work are short. A bulk pack of which a part is decided goes on in the next batch of its
// class.
func TestClassesAlternate(t *testing.T) {
	t.Parallel()
	w := begun(t)
	for _, ev := range manyGrasps(100, 10) {
		w.rechecks.add(bulk, policy.Release(ev))
	}
	w.puts(t, laneSync, proto.LaneSyncDaily, manyGrasps(10, 20)...)
	w.batchSize = 20
	var got []string
	for n := range 8 {
		w.puts(t, laneUser, proto.LaneUser, manyGrasps(n, 1)[0])
		b, err := w.gather(t.Context())
		must(t, err)
		got = append(got, fmt.Sprint(b.decided[0].candidate.Lane, len(b.decided)))
	}
	want := []string{"user1", "release5", "user2", "release5", "user2", "sync.daily5", "user2", "sync.daily5"}
	if !slices.Equal(got, want) {
		t.Errorf("batches of %v, want %v", got, want)
	}
}

// TestAFailedBatchGivesRechecksBack: what it had taken comes first again, but for releases, for
// which the next writer looks itself.
func TestAFailedBatchGivesRechecksBack(t *testing.T) {
	t.Parallel()
	release := policy.Release(manyGrasps(1, 1)[0])
	taken, left := &policy.Candidate{Lane: proto.LaneSyncDaily}, &policy.Candidate{Lane: proto.LaneSyncLive}
	var r rechecks
	r.add(bulk, left, release)
	r.restore(bulk, []*policy.Candidate{release, taken})
	if !slices.Equal(r.waiting[bulk], []*policy.Candidate{taken, left}) {
		t.Errorf("%d rechecks wait, want the taken one and the one behind it", r.len())
	}
}

// TestARecheckComesRightBehindItsCause, before the rest of its pack: where packs and batches end
// makes no difference to the log.
func TestARecheckComesRightBehindItsCause(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	start(t, b, "one")
	s, alice, bob := newSender(t, b), newPerson(1), newPerson(2)
	announcement, issue := alice.announcement("tree", 100), bob.issue(alice, "tree", 1)
	comment := bob.event(1111, 300, "", nostr.Tag{"E", issue.ID})
	reply := bob.event(1111, 400, "", nostr.Tag{"E", comment.ID})
	list := manyGrasps(1, 1)[0]
	s.serve(announcement)
	s.raw(proto.LaneSyncDaily, joined(t, []*nostr.Event{reply, comment, issue, list}))
	eventually(t, "all are in the log", func() bool { return len(logIDs(t, b)) == 5 })
	if got, want := logIDs(t, b), []string{announcement.ID, issue.ID, comment.ID, reply.ID, list.ID}; !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}
