package writer

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

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

// chain is a policy by which each recheck causes the next one, so many times.
type chain struct {
	Policy
	left int
}

func (p *chain) Decide(k policy.Knowledge, c *policy.Candidate) policy.Decision {
	d := p.Policy.Decide(k, c)
	if c.Lane == proto.LaneRelease && p.left > 0 {
		p.left--
		d.Next = append(d.Next, policy.Release(c.Event))
	}
	return d
}

// TestUrgentOvertakesAChainOfRechecks: an urgent event that waits is decided after one batch at
// most, though each recheck of a long row causes the next one, as replies to replies do. The row is
// decided to its end.
func TestUrgentOvertakesAChainOfRechecks(t *testing.T) {
	t.Parallel()
	w := begun(t)
	row := &chain{w.policy, 5 * commitSize}
	w.policy = row
	w.rechecks.add(urgent, policy.Release(manyGrasps(1000, 1)[0]))
	user, batches, decidedAt := manyGrasps(1, 1)[0], 0, -1
	w.puts(t, laneUser, proto.LaneUser, user)
	for ; w.rechecks.len() > 0; batches++ {
		b, err := w.gather(t.Context())
		must(t, err)
		if slices.ContainsFunc(b.decided, func(x decided) bool { return x.candidate.Event.ID == user.ID }) {
			decidedAt = batches
		}
	}
	if decidedAt < 0 || decidedAt > 1 || row.left > 0 {
		t.Errorf("of %d batches the urgent event was in number %d; %d rechecks are left", batches, decidedAt, row.left)
	}
}

// acknowledged is a message that counts its acknowledgements.
type acknowledged struct {
	message
	times int
}

func (m *acknowledged) Ack() error { m.times++; return nil }

// TestACrowdIsHealedInPieces: thousands of rejected events miss one announcement, some that it is
// held, others that it is accepted. A user's event that comes meanwhile is decided after one batch
// at most, no batch takes back more than one commit of them, and in the end all are taken back. The
// cause's message is not acknowledged, because a crash would leave the rest as it is.
func TestACrowdIsHealedInPieces(t *testing.T) {
	t.Parallel()
	w, alice := begun(t), newPerson(1)
	announcement := encode(t, alice.announcement("tree", 100))
	release := header(proto.HeaderAction, string(proto.ActionRelease))
	for step, cause := range []struct {
		lane    int
		message message
		missing string
	}{
		{laneUser, message{subject: proto.LaneUser.Subject(), data: announcement}, policy.MissingAnnouncement("tree")},
		{laneRelease, message{subject: proto.LaneRelease.Subject(), header: release, data: announcement}, alice.repo("tree")[1]},
	} {
		for part := range 2 {
			msgs := make([]*nats.Msg, mostRejections)
			for n := range msgs {
				r := proto.RejectedEvent{Kind: 1621, PubKey: string(alice), Missing: []string{cause.missing}, Relay: "wss://relay.example",
					ID: fmt.Sprintf("%032x%032x", (2*step+part)*mostRejections+n, 1)}
				subject := proto.RejectedSubject{Kind: r.Kind, ShortID: proto.ShortID(r.ID)}
				msgs[n] = &nats.Msg{Subject: subject.String(), Data: w.Rejected.Encode(r)}
			}
			_, err := w.Bus.PublishBatch(t.Context(), msgs, nil)
			must(t, err, w.Rejected.CatchUp(t.Context()))
		}
		m := &acknowledged{message: cause.message}
		w.scheduler.put(t.Context(), cause.lane, readPack(m))
		user, decidedAt := manyGrasps(step, 1)[0], -1
		for n := 0; n == 0 || w.rechecks.len() > 0 || w.scheduler.waits(urgent); n++ {
			b, err := w.gather(t.Context())
			must(t, err, w.commit(t.Context(), b))
			w.answer(b)
			if n == 0 {
				w.puts(t, laneUser, proto.LaneUser, user)
			}
			if slices.ContainsFunc(b.decided, func(x decided) bool { return x.candidate.Event.ID == user.ID }) {
				decidedAt = n
			}
			if took := len(w.draft.rejections); took > mostRejections {
				t.Errorf("batch %d takes %d rejections back", n, took)
			}
		}
		left, _ := w.Rejected.Waiting(cause.missing, 1, func(string) bool { return false })
		if len(left) > 0 || decidedAt < 1 || decidedAt > 2 || m.times > 0 {
			t.Errorf("%d are left; the user's event is in batch %d; %d acknowledgements", len(left), decidedAt, m.times)
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

// TestABulkBatchFills: one that follows another waits for more of it, for a moment at most, and
// not while urgent work waits. The first waits for nothing.
func TestABulkBatchFills(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScheduler(newLanes(), &rechecks{})
		put := func(lane int) {
			s.put(t.Context(), lane, &pack{events: make([]*policy.Candidate, 1), verdicts: make([]proto.Verdict, 1)})
		}
		took := func(want time.Duration, wantMore bool) {
			t.Helper()
			began := time.Now()
			if _, more := s.fill(t.Context(), bulk); more != wantMore || time.Since(began) != want {
				t.Errorf("more: %t, after %v; want %t after %v", more, time.Since(began), wantMore, want)
			}
		}
		took(0, false)
		s.committing(bulk)
		const soon = bulkPace / 4
		time.AfterFunc(soon, func() { put(laneSync) })
		took(soon, true)
		took(bulkPace-soon, false)
		s.committing(urgent)
		took(0, false)
		s.committing(bulk)
		time.AfterFunc(soon, func() { put(laneLive) })
		took(soon, false)
	})
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
