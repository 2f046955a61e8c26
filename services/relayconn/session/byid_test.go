package session_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/session"
)

// asksByID makes the session one that can be told ids.
func (p *play) asksByID() (ids chan []string) {
	ids = make(chan []string)
	p.session.ByID = ids
	return ids
}

func (p *play) hasAccepted(id string) (is bool) {
	p.with(func() { is = p.accepted[id] })
	return is
}

// TestAskedByID: what ingest names is asked for at once, however old it is, and goes on the live
// lane. What the relay does not have is no failure.
func TestAskedByID(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		ids, old := p.asksByID(), issue(5, "30617:aa:000")
		p.begin()
		p.wants(1)
		sleep(rules.Calm)
		p.with(func() { p.stored = []*nostr.Event{old} })
		ids <- []string{old.ID, issue(6, "30617:aa:000").ID, "no id"}
		sleep(30 * time.Second)
		if p.came(1); p.offer(0).Lane != proto.LaneSyncLive || p.offer(0).Source == proto.SourceLive {
			t.Errorf("offered as %+v", p.offer(0))
		}
		asked := p.asks()
		sleep(time.Hour)
		if p.complete(1); p.asks() != asked {
			t.Error("what the relay does not have is asked for again")
		}
	})
}

// TestOnlyByID: a relay that is not ours is asked for nothing else.
func TestOnlyByID(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		ids, old := p.asksByID(), issue(5, "30617:aa:000")
		p.stored = []*nostr.Event{old, issue(6, "30617:aa:000")}
		p.run(session.Start{OnlyByID: true})
		ids <- []string{old.ID}
		sleep(time.Minute)
		if p.came(1); len(p.log) != 1 {
			t.Errorf("asked %v", p.log)
		}
	})
}

// TestByIDRefused: ids that the relay refuses to be asked for are asked for again.
func TestByIDRefused(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		ids, old := p.asksByID(), issue(5, "30617:aa:000")
		p.begin()
		p.muted(true)
		ids <- []string{old.ID}
		synctest.Wait()
		if n := p.closeHistoric("error: not now"); n == 0 {
			t.Fatal("nothing is asked for")
		}
		p.muted(false)
		p.with(func() { p.stored = []*nostr.Event{old} })
		sleep(2 * time.Minute)
		p.came(1)
	})
}

// TestLostVerdicts are asked for by id: of an old event that came live, and of one of many pages,
// which are not walked through again.
func TestLostVerdicts(t *testing.T) {
	for name, live := range map[string]bool{"live": true, "past": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *play) {
				old := issue(5, "30617:aa:000")
				if !live {
					p.stored = []*nostr.Event{old}
				}
				p.begin()
				p.with(func() { p.fail = errors.New("the bus is gone") })
				if p.wants(1); live {
					sleep(rules.Calm)
					p.published("30617:aa:000") // so that it is certain that something is open
					p.with(func() { p.stored = []*nostr.Event{old} })
					p.sends(p.listens(old)[0], old)
				}
				synctest.Wait()
				p.with(func() { p.fail = nil })
				sleep(3 * time.Minute)
				if !p.hasAccepted(old.ID) {
					t.Error("an old event whose verdict was lost did not come again")
				}
				var byID bool
				p.with(func() {
					for _, c := range p.asksFor {
						byID = byID || len(c.IDs) > 0
					}
				})
				if !byID {
					t.Error("it was not asked for by id")
				}
			})
		})
	}
}

// TestAgainLater: what ingest takes later is asked for then, and nothing else waits for it.
func TestAgainLater(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		old := issue(5, "30617:aa:000")
		p.stored = []*nostr.Event{old}
		p.with(func() {
			p.later = "restricted: purgatory is crowded"
			p.retry = time.Now().Add(10 * time.Minute)
		})
		p.begin()
		p.wants(1)
		sleep(rules.Calm)
		p.complete(1)
		sleep(9 * time.Minute)
		if p.hasAccepted(old.ID) {
			t.Fatal("accepted too early")
		}
		sleep(2 * time.Minute)
		if !p.hasAccepted(old.ID) {
			t.Error("it was not asked for again")
		}
	})
}

// TestManyRemindersAtOnce: of what is due together no more is asked for than there is room for, and
// the rest after that.
func TestManyRemindersAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		const many = 6000 // more than are asked for by id at once
		p.session.Reminders = &session.Reminders{}
		for n := range many {
			p.session.Reminders.Add(fmt.Sprintf("%064x", n+1), time.Now(), time.Now())
		}
		p.begin()
		sleep(time.Minute)
		asked := map[string]bool{}
		p.with(func() {
			for _, f := range p.asksFor {
				for _, id := range f.IDs {
					asked[id] = true
				}
			}
		})
		if len(asked) != many {
			t.Errorf("%d of %d events are asked for by id", len(asked), many)
		}
	})
}

// TestMoreRemindersThanRoom: what ingest takes later, and is not kept in mind, is found again.
func TestMoreRemindersThanRoom(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		p.session.Reminders = &session.Reminders{}
		for n := 0; p.session.Reminders.Add(fmt.Sprintf("%064x", n+1), time.Now().Add(20*time.Hour), time.Now()); n++ {
		}
		old := issue(5, "30617:aa:000")
		p.stored = []*nostr.Event{old}
		p.with(func() {
			p.later = "restricted: purgatory is crowded"
			p.retry = time.Now().Add(10 * time.Minute)
		})
		p.begin()
		p.wants(1)
		sleep(9 * time.Minute)
		p.with(func() { p.stored = append(p.stored, issue(nostr.Now(), "30617:aa:000")) })
		sleep(12 * time.Minute)
		if !p.hasAccepted(old.ID) {
			t.Error("it was not asked for again")
		}
		p.complete(1)
	})
}

// TestByIDAfterAnEarlyEOSE: what comes after the end of the answer is taken in, as of the past.
func TestByIDAfterAnEarlyEOSE(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		ids, old := p.asksByID(), issue(5, "30617:aa:000")
		p.muted(true)
		p.run(session.Start{OnlyByID: true})
		ids <- []string{old.ID}
		synctest.Wait()
		sub := p.latest()
		p.eose(sub)
		sleep(2 * time.Second)
		p.sends(sub, old)
		sleep(time.Second)
		p.came(1)
	})
}

// TestByIDOnTheNextConnection: what could not be asked for by id before the connection ended is
// asked for on the next one.
func TestByIDOnTheNextConnection(t *testing.T) {
	bubble(t, func(t *testing.T, p *play) {
		ids, old := p.asksByID(), issue(5, "30617:aa:000")
		p.session.Reminders = &session.Reminders{}
		p.stored = []*nostr.Event{old}
		p.begin()
		p.notice("rate-limited: slow down")
		ids <- []string{old.ID}
		sleep(time.Second)
		p.came(0)
		p.stop()
		p.session = session.New(p.session.Options)
		p.session.Pauses = &session.Pauses{}
		p.begin()
		sleep(time.Second)
		p.came(1)
	})
}
