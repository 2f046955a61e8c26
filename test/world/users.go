package world

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

// Users are people at work at a front door: they clone, fetch, push, publish and ask, and one
// listens to what others publish.
type Users struct {
	t       testing.TB
	door    Door
	shared  *Repo
	pushers []*Repo

	mu    sync.Mutex
	acked []string        // events of which a user was told that they are accepted
	seen  map[string]bool // by the one who listens
	dials int             // of that one
}

// NewUsers makes users of a repository, who push to repositories of their own.
func NewUsers(t testing.TB, shared *Repo, how Hosting) *Users {
	t.Helper()
	u := &Users{t: t, door: shared.Door, shared: shared, seen: map[string]bool{}}
	for _, name := range []string{"pushed-one", "pushed-two"} {
		u.pushers = append(u.pushers, u.door.Host(name, how))
	}
	return u
}

// UsersDo is what users do.
var UsersDo = []string{"clone", "fetch", "push", "publish", "ask", "NIP-11"}

// Run lets users work until stop is closed. It fails if the one who listens has missed an event. At
// a pace of a second they stay within what the front door allows one address, which is 240 events a
// minute, 60 of them on one connection, and 600 git requests.
func (u *Users) Run(t testing.TB, m *Meter, pace time.Duration, stop <-chan struct{}) error {
	t.Helper()
	dir, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	GitOnceMoved(t, dir, "clone", "-q", u.shared.At(u.door), copied)
	asker := &client{u: u}
	actions := []Action{
		{"ask", pace / 2, func(t testing.TB, _ int) error { return asker.do(t, u.ask) }},
		{"NIP-11", pace / 2, u.information},
		{"fetch", pace, func(t testing.TB, _ int) error { return git(t, copied, "fetch", "-q", "--prune") }},
	}
	for range 2 {
		actions = append(actions, Action{"clone", pace, func(t testing.TB, _ int) error {
			return git(t, dir, "clone", "-q", u.shared.At(u.door), rand.Text())
		}})
	}
	clients := []*client{asker}
	for _, p := range u.pushers {
		c := &client{u: u}
		clients = append(clients, c)
		actions = append(actions, Action{"push", 5 * pace / 2, func(t testing.TB, attempt int) error {
			return p.Push(t, u.door, attempt, func(ev *nostr.Event) error { return c.publish(t, ev) })
		}})
	}
	for range 3 {
		c, ev := &client{u: u}, (*nostr.Event)(nil)
		clients = append(clients, c)
		actions = append(actions, Action{"publish", 11 * pace / 10, func(t testing.TB, attempt int) error {
			if attempt == 0 {
				address := u.shared.Owner.Address(u.shared.Name)
				ev = u.shared.Owner.Sign(gonostr.KindComment, "a user's comment "+rand.Text(), nostr.Tag{"A", address}, nostr.Tag{"K", "30617"},
					nostr.Tag{"a", address}, nostr.Tag{"k", "30617"})
			}
			if err := c.publish(t, ev); err != nil {
				return err
			}
			u.mu.Lock()
			defer u.mu.Unlock()
			u.acked = append(u.acked, ev.ID)
			return nil
		}})
	}
	before := len(u.Acked())
	endListening := u.listen(t)
	defer endListening()
	m.Run(t, stop, actions)
	for _, c := range clients {
		c.hangUp()
	}
	return u.sawAll(u.Acked()[before:])
}

// Acked is every event of which a user was told that it is accepted.
func (u *Users) Acked() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.acked)
}

// CheckPushes clones what was pushed and compares it with what was acknowledged.
func (u *Users) CheckPushes(t testing.TB) {
	t.Helper()
	for _, p := range u.pushers {
		CloneIs(t, p.At(u.door), p.Pushed)
		t.Logf("the newest of %d commits pushed to %s is HEAD of a whole clone", p.commits, p.Name)
	}
}

// ask asks for the repository's announcement.
func (u *Users) ask(s *Socket) error {
	events, err := s.Query(nostr.Filter{Kinds: []int{30617}, Authors: []string{u.shared.Owner.PubKey}})
	if err == nil && len(events) != 1 {
		err = fmt.Errorf("%d announcements of one repository", len(events))
	}
	return err
}

// information asks for the relay information document, on a connection of its own.
func (u *Users) information(t testing.TB, _ int) error {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u.door.URL, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/nostr+json")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var document map[string]any
	if err := json.NewDecoder(response.Body).Decode(&document); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("the information document is answered %s: %w", response.Status, err)
	}
	return nil
}

// client is a user's connection to the relay, opened again when it has ended.
type client struct {
	u     *Users
	open  *Socket
	moved string // the event that was sent when the relay said goodbye
}

// do uses the connection, which an error ends. If the relay said goodbye the error wraps
// [ErrMoved].
func (c *client) do(t testing.TB, use func(*Socket) error) (err error) {
	if c.open == nil {
		if c.open, err = TryDial(c.u.t, c.u.door.Relay()); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	defer context.AfterFunc(t.Context(), c.open.Close)()
	if err = use(c.open); err != nil {
		c.hangUp()
	}
	if websocket.CloseStatus(err) == websocket.StatusGoingAway {
		return fmt.Errorf("%w: %w", ErrMoved, err)
	}
	return err
}

func (c *client) hangUp() {
	if c.open != nil {
		c.open.Close()
		c.open = nil
	}
}

// publish sends an event and waits for its OK. A relay that says goodbye instead cannot have read
// the event.
func (c *client) publish(t testing.TB, ev *nostr.Event) error {
	return c.record(ev, c.do(t, func(s *Socket) error {
		ok, message, err := s.TrySubmit(ev)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("refused: %s", message)
		case c.moved == ev.ID && strings.HasPrefix(message, "duplicate:"):
			return errors.New("an event was read and not answered")
		}
		return nil
	}))
}

func (c *client) record(ev *nostr.Event, err error) error {
	c.moved = ""
	if errors.Is(err, ErrMoved) {
		c.moved = ev.ID
	}
	return err
}

// listen keeps a subscription open to what users write about the repository. It connects again when
// the connection ends, and asks for what came meanwhile.
func (u *Users) listen(t testing.TB) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	began := nostr.Now() - 1
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			if err := u.connection(ctx, began); err != nil && ctx.Err() == nil {
				time.Sleep(250 * time.Millisecond)
			}
		}
	})
	return func() { cancel(); ended.Wait() }
}

func (u *Users) connection(ctx context.Context, since nostr.Timestamp) error {
	s, err := TryDial(u.t, u.door.Relay())
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, s.Close)()
	go s.keepAlive(ctx)
	u.mu.Lock()
	u.dials++
	u.mu.Unlock()
	filter := nostr.Filter{Kinds: []int{gonostr.KindComment}, Authors: []string{u.shared.Owner.PubKey}, Since: &since, Limit: 5000}
	if err := s.TrySend("REQ", "live", filter); err != nil {
		return err
	}
	for {
		m, err := s.TryNext()
		if err != nil {
			return err
		}
		if m[0] == "EVENT" {
			u.mu.Lock()
			u.seen[EventID(m)] = true
			u.mu.Unlock()
		}
	}
}

// sawAll waits until all of these were seen by the one who listens.
func (u *Users) sawAll(ids []string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		u.mu.Lock()
		missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return u.seen[id] })
		dials := u.dials
		u.mu.Unlock()
		if len(missing) == 0 {
			u.t.Logf("a client with an open subscription saw all %d events, over %d connections", len(ids), dials)
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a client with an open subscription did not see %d of %d events, like %s", len(missing), len(ids), missing[0])
		}
		time.Sleep(100 * time.Millisecond)
	}
}
