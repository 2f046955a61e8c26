package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
	"tendril.dev/test/world"
)

// scene is [world.Scene] with what is looked at here.
type scene struct{ *world.Scene }

func newScene(t *testing.T) *scene {
	t.Helper()
	return &scene{world.NewScene(t)}
}

// TestStory is the one thread through all rooms: one relay found, one event accepted, its git data
// hunted, released and cloned; and the conversation about it, past and present, from a second relay
// that was not known before.
func TestStory(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Git.Shut(true)
	s.First.Shut(true)
	p := world.Start(t, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": s.First.URL})
	bus := world.Listen(t, p.NATS)
	s.First.Shut(false)

	// As long as the git server is away, announcement and state wait, and are not served.
	fixture.Await(t, "announcement and state are held", func() bool {
		return bus.Heard("grasp.held.", s.Announcement.ID) && bus.Heard("grasp.held.", s.State.ID)
	})
	held := len(bus.Said())
	fixture.Await(t, "their git data is looked for in vain", func() bool { _, heard := bus.HeardAfter(held, "grasp.git.", "503"); return heard })
	if got := world.Fetch(t, p.Relay(), nostr.Filter{Kinds: []int{30617, 30618}}); len(got) != 0 {
		t.Fatalf("held events are served: %v", got)
	}
	s.Git.Shut(false)

	world.Serves(t, p.Relay(), s.Announcement)
	world.Serves(t, p.Relay(), s.State)
	world.Serves(t, p.Relay(), s.Issue, s.Patch, s.Comment, s.OnComment, s.Pull)
	if got := world.Fetch(t, p.Relay(), nostr.Filter{IDs: []string{s.Unrelated.ID}}); len(got) != 0 {
		t.Error("what has nothing to do with the repository is served")
	}

	// What is published now comes live; a comment on it comes by layer 3, whose root was not there
	// when the connection was made.
	late := s.NewIssue("another one")
	s.Second.Publish(late)
	world.Serves(t, p.Relay(), late)
	answer := s.Owner.Comment("answered", late, late)
	s.Second.Publish(answer)
	world.Serves(t, p.Relay(), answer)

	s.CheckClone(t, p.URL)
	s.checkLayers(t)
	s.checkTranscript(t, bus)
	if err := p.Stop(); err != nil {
		t.Errorf("the stop: %v", err)
	}
}

// checkLayers looks at what the second relay was asked: all three layers, nothing without bounds,
// and live subscriptions that stay.
func (s *scene) checkLayers(t *testing.T) {
	t.Helper()
	for _, tag := range []string{"a", "A", "q", "e", "E"} {
		fixture.Await(t, "the second relay is asked by #"+tag, func() bool {
			return slices.ContainsFunc(s.Second.Asked(), func(f nostr.Filter) bool { return f.Tags[tag] != nil })
		})
	}
	fixture.Await(t, "layer 1, three live filters of layer 2 and three of layer 3 are open at the second relay", func() bool { return s.Second.Listening() >= 7 })
	for _, f := range s.Second.Asked() {
		if len(f.Tags) == 0 && len(f.Kinds) == 0 {
			t.Errorf("asked for everything: %v", f)
		}
	}
}

// synced waits until everything is confirmed that the second relay was asked for, so that the next
// connection is a quick one.
func (s *scene) synced(t *testing.T, bus *world.Listener) {
	t.Helper()
	fixture.Await(t, "the second relay is synced", func() bool {
		for _, said := range bus.Said() {
			var state struct {
				URL      string    `json:"url"`
				Complete time.Time `json:"complete_until"`
				Repos    int       `json:"repos"`
				Roots    int       `json:"roots"`
			}
			if strings.HasPrefix(said.Subject, "grasp.relay.") && json.Unmarshal([]byte(said.Data), &state) == nil &&
				gonostr.NormalizeURL(state.URL) == gonostr.NormalizeURL(s.Second.URL) && !state.Complete.IsZero() && state.Repos == 1 && state.Roots == 3 {
				return true
			}
		}
		return false
	})
}

// checkQuick: since it was asked so many filters, the second relay was not asked for the whole past
// of the repository again.
func (s *scene) checkQuick(t *testing.T, before int) {
	t.Helper()
	for _, f := range s.Second.Asked()[before:] {
		if f.Since == nil && !f.LimitZero && len(f.Tags["a"])+len(f.Tags["A"])+len(f.Tags["q"]) > 0 && len(f.Tags["e"])+len(f.Tags["E"]) == 0 && f.Tags["q"] == nil {
			t.Errorf("after a short absence the relay was asked for the whole past: %v", f)
		}
	}
}

// checkTranscript: a listener on the bus has seen all of it happen, in order.
func (s *scene) checkTranscript(t *testing.T, bus *world.Listener) {
	t.Helper()
	order := []struct{ what, subject, text string }{
		{"the announcement is found", "grasp.candidate.sync.historic", s.Announcement.ID},
		{"the announcement is held", "grasp.held.", s.Announcement.ID},
		{"the git server fails", "grasp.git." + world.Project + ".failed", "503"},
		{"the git server delivers", "grasp.git." + world.Project + ".fetched", "origin.git"},
		{"its release is asked for", "grasp.candidate.release", s.Announcement.ID},
		{"it is in the log", "grasp.event.30617." + s.Owner.PubKey, s.Announcement.ID},
		{"the repository is wanted from a relay", "grasp.wanted.127", `"level":"full"`},
		{"the issue is found there", "grasp.candidate.sync.", s.Issue.ID},
		{"it is in the log", "grasp.event.1621." + s.Guest.PubKey, s.Issue.ID},
	}
	at := 0
	for _, step := range order {
		fixture.Await(t, fmt.Sprintf("it is said, after %d messages, that %s", at, step.what), func() bool {
			found, heard := bus.HeardAfter(at, step.subject, step.text)
			if heard {
				at = found + 1
			}
			return heard
		})
	}
	for _, subject := range []string{"grasp.relay.", "grasp.verdict.", "grasp.git." + world.Project + ".released"} {
		fixture.Await(t, "something is said on "+subject, func() bool { return bus.Heard(subject, "") })
	}
}
