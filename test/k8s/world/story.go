package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/outside"
)

// The repositories of the story: one that a user announces here and pushes, and one that was
// announced elsewhere and lies on a foreign git server.
const (
	project = "tendril-demo"
	abroad  = "from-abroad"
)

// Kinds of NIP-34 for which the library has no name.
const (
	pullRequest = 1618
	issue       = 1621
)

// relay is the WebSocket URL of the front door.
func (w *World) relay() string { return "ws" + strings.TrimPrefix(w.gateway, "http") }

// repository is where git finds a repository at the front door.
func (w *World) repository(of *outside.Person, identifier string) string {
	return w.gateway + "/" + of.Npub + "/" + identifier + ".git"
}

// story is the one thread through all rooms. A user announces a repository that lists all relays
// and pushes it; on one of these relays lies the announcement of a repository whose data lies on a
// git server, which is found, hunted and served with what is said about it.
func (w *World) story(ctx context.Context, t *task) error {
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	announced, err := w.lieAbroad(ctx)
	if err != nil {
		return err
	}
	t.say("abroad: an announcement, its state and an issue lie on two relays, the data on a git server")
	if err := w.announceAndPush(ctx, t); err != nil {
		return err
	}
	began := time.Now()
	for _, ev := range announced.events {
		if err := w.waitServed(ctx, ev); err != nil {
			return err
		}
	}
	if err := w.cloneIs(ctx, w.stranger, abroad, announced.head); err != nil {
		return err
	}
	t.say("abroad: announcement and state found on relay 1, git data hunted, pull request and issue synced, clone is whole (after %v)",
		time.Since(began).Round(time.Second))
	return nil
}

// foreign is a repository that was announced elsewhere.
type foreign struct {
	events []*nostr.Event
	head   string
}

// lieAbroad puts a repository on the git server, and what is said about it on the first relays.
func (w *World) lieAbroad(ctx context.Context) (*foreign, error) {
	dir, head, err := w.workTree(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.git.Host(ctx, "origin", dir); err != nil {
		return nil, err
	}
	refs, err := outside.Refs(ctx, dir)
	if err != nil {
		return nil, err
	}
	address, now := w.stranger.Address(abroad), nostr.Now()
	relays := []string{w.urls[0], w.urls[1%len(w.urls)]}
	announcement, err := w.stranger.Sign(now, gonostr.KindRepositoryAnnouncement, "",
		w.stranger.AnnouncementTags(w.domain, abroad, abroad, []string{w.gitURL + "/origin.git"}, relays)...)
	if err != nil {
		return nil, err
	}
	state, err := w.stranger.Sign(now, gonostr.KindRepositoryState, "", outside.StateTags(abroad, refs, "refs/heads/main")...)
	if err != nil {
		return nil, err
	}
	broken, err := w.guest.Sign(now, issue, "it does not work", nostr.Tag{"a", address})
	if err != nil {
		return nil, err
	}
	pull, err := w.guest.Sign(now, pullRequest, "please", nostr.Tag{"a", address}, nostr.Tag{"c", head}, nostr.Tag{"clone", w.gitURL + "/origin.git"})
	if err != nil {
		return nil, err
	}
	if err := w.relays[0].Publish(announcement, state); err != nil {
		return nil, err
	}
	return &foreign{[]*nostr.Event{announcement, state, broken, pull}, head}, w.relays[1%len(w.relays)].Publish(broken, pull)
}

// workTree makes a repository with two commits and returns its folder and the newer commit.
func (w *World) workTree(ctx context.Context) (dir, head string, err error) {
	if dir, err = os.MkdirTemp(w.dir, "work-"); err != nil {
		return "", "", err
	}
	if err = outside.InitWorkTree(ctx, dir); err != nil {
		return "", "", err
	}
	for _, message := range []string{"first", "second"} {
		if head, err = outside.Commit(ctx, dir, message); err != nil {
			return "", "", err
		}
	}
	return dir, head, nil
}

// announce sends announcement and state of a work tree. Its push is awaited then.
func (w *World) announce(ctx context.Context, who *outside.Person, identifier, dir string, relays []string) error {
	announcement, err := who.Sign(nostr.Now(), gonostr.KindRepositoryAnnouncement, "", who.AnnouncementTags(w.domain, identifier, identifier, nil, relays)...)
	if err != nil {
		return err
	}
	if err := w.submit(ctx, announcement); err != nil {
		return err
	}
	return w.state(ctx, who, identifier, dir, nostr.Now())
}

// state signs what a work tree's branches are and sends it.
func (w *World) state(ctx context.Context, who *outside.Person, identifier, dir string, at nostr.Timestamp) error {
	refs, err := outside.Refs(ctx, dir)
	if err != nil {
		return err
	}
	state, err := who.Sign(at, gonostr.KindRepositoryState, "", outside.StateTags(identifier, refs, "refs/heads/main")...)
	if err != nil {
		return err
	}
	return w.submit(ctx, state)
}

func (w *World) announceAndPush(ctx context.Context, t *task) error {
	dir, head, err := w.workTree(ctx)
	if err != nil {
		return err
	}
	if err := w.announce(ctx, w.owner, project, dir, w.urls); err != nil {
		return err
	}
	t.say("user: announcement (it lists %d relays) and state are taken and wait for git data", len(w.urls))
	if _, err := outside.RunGit(ctx, dir, "push", "-q", w.repository(w.owner, project), "main"); err != nil {
		return err
	}
	if err := w.cloneIs(ctx, w.owner, project, head); err != nil {
		return err
	}
	t.say("user: pushed; a clone is whole")
	return nil
}

// submit sends an event on a connection of its own; a refusal is an error.
func (w *World) submit(ctx context.Context, ev *nostr.Event) error {
	s, err := outside.Dial(ctx, w.relay(), nil)
	if err != nil {
		return fmt.Errorf("connect to the relay: %w", err)
	}
	defer s.Close()
	ok, message, err := s.Submit(ctx, ev)
	if err != nil {
		return fmt.Errorf("submit an event of kind %d: %w", ev.Kind, err)
	}
	if !ok {
		return fmt.Errorf("an event of kind %d is refused: %s", ev.Kind, message)
	}
	return nil
}

// waitServed waits until the front door serves an event.
func (w *World) waitServed(ctx context.Context, ev *nostr.Event) error {
	for {
		missing, err := w.notServed(ctx, []string{ev.ID})
		if err == nil && len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the event %s of kind %d is not served (%v)", ev.ID, ev.Kind, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// cloneIs clones a repository from the front door and checks its HEAD and all its objects.
func (w *World) cloneIs(ctx context.Context, of *outside.Person, identifier, head string) error {
	dir, err := os.MkdirTemp(w.dir, "clone-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := outside.RunGit(ctx, dir, "clone", "-q", w.repository(of, identifier), "copy"); err != nil {
		return err
	}
	copied := filepath.Join(dir, "copy")
	if got, err := outside.RunGit(ctx, copied, "rev-parse", "HEAD"); err != nil {
		return err
	} else if got != head {
		return fmt.Errorf("HEAD of the clone of %s is %s, want %s", identifier, got, head)
	}
	_, err = outside.RunGit(ctx, copied, "fsck", "--full")
	return err
}
