package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// source is a relay that has a repository with issues and comments.
type source struct {
	owner, guest *fixture.Person
	work         *world.WorkTree
	issues       []*nostr.Event
	written      int // comments
}

// comment writes a comment on one of the issues, each a second after the one before.
func (s *source) comment() *nostr.Event {
	s.written++
	root := s.issues[s.written%len(s.issues)]
	return s.guest.At(s.issues[0].CreatedAt+nostr.Timestamp(s.written)).Comment(fmt.Sprint("comment ", s.written), root, root)
}

// has makes everything but the announcement and its state, with so many comments.
func (s *source) has(comments int) (events []*nostr.Event) {
	for n := range 10 {
		s.issues = append(s.issues, s.guest.At(nostr.Now()-20_000).Sign(1621, fmt.Sprint("issue ", n), s.owner.Repo("mine")))
	}
	events = append(events, s.issues...)
	for range comments {
		events = append(events, s.comment())
	}
	return events
}

// through counts the bytes between a relay, whose address is given to to, and who asks it.
func through(t *testing.T) (door world.Door, to func(string), moved func() int64) {
	b := world.NewBalancer(t)
	door, moved = b.Slow(t, 64, 0)
	return door, b.Add, moved
}

// TestReconcile: what a relay has and what is known here is compared by NIP-77 when all is asked
// for again. That takes less than a fiftieth of the bytes that REQ takes.
func TestReconcile(t *testing.T) {
	t.Parallel()
	const many, few = 5000, 40
	scene := func(t *testing.T) *source {
		return &source{owner: fixture.NewPerson(), guest: fixture.NewPerson(), work: world.NewWorkTree(t)}
	}
	t.Run("khatru", func(t *testing.T) {
		t.Parallel()
		s, git := scene(t), world.NewGitServer(t)
		at, to, moved := through(t)
		relay := world.NewKhatru(t, true)
		to("http" + strings.TrimPrefix(relay.URL, "ws"))
		relay.Publish(s.owner.Announce("mine", git.Host("mine", s.work), at.Relay()),
			s.owner.State("mine", s.work.Refs()))
		relay.Publish(s.has(many)...)
		s.follow(t, at, moved, few, relay.Publish)
	})
	t.Run("Tendril", func(t *testing.T) {
		t.Parallel()
		s := scene(t)
		at, to, moved := through(t)
		// This is its own address, so that it does not follow itself.
		p := world.Start(t, map[string]string{"NGIT_DOMAIN": strings.TrimPrefix(at.URL, "http://")})
		to(p.URL)
		p.Holds(s.owner.Announce("mine", at.Repo(s.owner, "mine"), at.Relay()), s.owner.State("mine", s.work.Refs()))
		s.work.Git("push", "-q", p.Repo(s.owner, "mine"), "main")
		publish := func(events ...*nostr.Event) {
			for some := range slices.Chunk(events, 100) {
				c := p.Dial()
				for _, ev := range some {
					c.Send("EVENT", ev)
				}
				for range some {
					if m := c.Next(); m[0] != "OK" || m[2] != true {
						t.Fatalf("an event is answered %v", m)
					}
				}
				c.Close()
			}
		}
		events := s.has(many)
		publish(events[:len(s.issues)]...)
		publish(events[len(s.issues):]...)
		s.follow(t, at, moved, few, publish)
	})
}

// follow syncs a Tendril with the relay by REQ, and later once more by NIP-77, when so many
// comments more are there.
func (s *source) follow(t *testing.T, at world.Door, moved func() int64, few int, publish func(...*nostr.Event)) {
	served := func(p *world.Tendril) {
		t.Helper()
		await(t, fmt.Sprintf("%d comments are served", s.written), func() bool {
			return p.Count(nostr.Filter{Kinds: []int{1111}}) == s.written
		})
	}
	before := settled(moved)
	f := world.Start(t, map[string]string{
		"NGIT_SYNC_BOOTSTRAP_RELAY_URL": at.Relay(), "TENDRIL_TEST_SYNC_RECONNECT_WINDOW": "0s", "NGIT_SYNC_DISABLE_NEGENTROPY": "true",
	})
	served(f)
	byREQ := settled(moved) - before
	must(t, f.Stop())
	var more []*nostr.Event
	for range few {
		more = append(more, s.comment())
	}
	publish(more...)
	before = settled(moved)
	f.Change(map[string]string{"NGIT_SYNC_DISABLE_NEGENTROPY": "false"})
	f.Restart()
	served(f)
	byNIP77 := settled(moved) - before
	t.Logf("%d bytes by REQ, %d by NIP-77 (%.2f%%)", byREQ, byNIP77, 100*float64(byNIP77)/float64(byREQ))
	if byNIP77*50 > byREQ {
		t.Errorf("%d missing events of %d moved %d bytes, all by REQ %d: more than 2%%", few, s.written, byNIP77, byREQ)
	}
}

// settled is how many bytes have been moved when for a while no more are.
func settled(moved func() int64) (n int64) {
	for last := int64(-1); n != last; n = moved() {
		last = n
		time.Sleep(3 * time.Second)
	}
	return n
}
