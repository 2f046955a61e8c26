package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/k8s/load"
	"tendril.dev/test/outside"
)

// users are people at work at the front door.
type users struct {
	mu      sync.Mutex
	meter   *load.Meter // of the load that runs, or ran last
	stop    chan struct{}
	acked   []string // ids of events that were acknowledged with OK true
	pushers []*pusher
}

// begin notes that a load begins; end ends it.
func (u *users) begin(m *load.Meter) (stop <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.meter, u.stop = m, make(chan struct{})
	return u.stop
}

func (u *users) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stop != nil {
		close(u.stop)
		u.stop = nil
	}
}

func (u *users) current() *load.Meter {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.meter
}

// acknowledged is every event of which a user was told that it is accepted.
func (u *users) acknowledged() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.acked)
}

func (u *users) ack(ids ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.acked = append(u.acked, ids...)
}

// How many users write, clone and push at once: as much as the front door allows one address, which
// is 240 events a minute, 60 of them on one connection, and 600 git requests.
const (
	writing = 3
	cloning = 2
	pushing = 2
)

// load lets users work until the task is ended.
func (w *World) load(ctx context.Context, t *task) error {
	meter := &load.Meter{}
	stop := w.users.begin(meter)
	if err := w.users.announcePushed(ctx, w); err != nil {
		return fmt.Errorf("before the load: %w", err)
	}
	actions := []load.Action{
		{Name: "REQ", Every: 500 * time.Millisecond, Do: func(ctx context.Context, _ int) error { return w.ask(ctx) }},
		{Name: "NIP-11", Every: 500 * time.Millisecond, Do: func(ctx context.Context, _ int) error { return w.information(ctx) }},
	}
	for range cloning {
		actions = append(actions, load.Action{Name: "clone", Every: time.Second, Do: func(ctx context.Context, _ int) error { return w.cloneSomething(ctx) }})
	}
	for _, p := range w.users.pushers {
		actions = append(actions, load.Action{Name: "push", Every: 2500 * time.Millisecond, Do: p.push})
	}
	var writers []*writer
	for range writing {
		wr := &writer{w: w}
		defer wr.hangUp()
		writers = append(writers, wr)
		actions = append(actions, load.Action{Name: "EVENT", Every: 1100 * time.Millisecond, Do: wr.write})
	}
	listener, ended := listen(ctx, w)
	meter.Run(ctx, stop, actions)
	var sent []string
	for _, wr := range writers {
		sent = append(sent, wr.sent...)
	}
	err := listener.sawAll(sent)
	ended()
	for _, line := range load.Lines(meter.Tallies()) {
		t.say("%s", line)
	}
	if err == nil {
		t.say("a client with an open subscription saw all %d events, over %d connections", len(sent), listener.connections())
	}
	return err
}

// goodbye makes an error of a WebSocket one of [load.ErrMoved] if the server said that it goes
// away.
func goodbye(err error) error {
	if websocket.CloseStatus(err) == websocket.StatusGoingAway {
		return fmt.Errorf("%w: %w", load.ErrMoved, err)
	}
	return err
}

// cloneSomething clones the users' repository.
func (w *World) cloneSomething(ctx context.Context) error {
	dir, err := os.MkdirTemp(w.dir, "clone-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := outside.RunGit(ctx, dir, "clone", "-q", w.repository(w.owner, project), "copy"); err != nil {
		return err
	}
	_, err = outside.RunGit(ctx, filepath.Join(dir, "copy"), "rev-parse", "HEAD")
	return err
}

// ask asks for the repository's announcement on a connection of its own.
func (w *World) ask(ctx context.Context) error {
	s, err := outside.Dial(ctx, w.relay(), nil)
	if err != nil {
		return err
	}
	defer s.Close()
	events, err := s.Query(ctx, nostr.Filter{Kinds: []int{gonostr.KindRepositoryAnnouncement}, Authors: []string{w.owner.PubKey}})
	if err != nil {
		return goodbye(err)
	}
	if len(events) == 0 {
		return errors.New("the announcement is not served")
	}
	return nil
}

// information asks for the relay information document, on a connection of its own.
func (w *World) information(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.gateway, nil)
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
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !json.Valid(body) {
		return fmt.Errorf("the information document is answered %s: %.100s", response.Status, body)
	}
	return nil
}

// writer sends events on a connection that it keeps open.
type writer struct {
	w      *World
	socket *outside.Socket
	next   *nostr.Event
	sent   []string
}

func (wr *writer) write(ctx context.Context, attempt int) (err error) {
	if attempt == 0 {
		n := rand.Text()
		address := wr.w.owner.Address(project)
		if wr.next, err = wr.w.owner.Sign(nostr.Now(), gonostr.KindComment, "user's comment "+n, nostr.Tag{"A", address}, nostr.Tag{"K", "30617"},
			nostr.Tag{"a", address}, nostr.Tag{"k", "30617"}); err != nil {
			return err
		}
	}
	if wr.socket == nil {
		if wr.socket, err = outside.Dial(ctx, wr.w.relay(), nil); err != nil {
			return err
		}
	}
	ok, message, err := wr.socket.Submit(ctx, wr.next)
	if err != nil {
		wr.hangUp()
		return goodbye(err)
	}
	if !ok {
		return fmt.Errorf("refused: %s", message)
	}
	wr.sent = append(wr.sent, wr.next.ID)
	wr.w.users.ack(wr.next.ID)
	return nil
}

func (wr *writer) hangUp() {
	if wr.socket != nil {
		wr.socket.Close()
		wr.socket = nil
	}
}

// pusher pushes commits to a repository of its own.
type pusher struct {
	w      *World
	who    *outside.Person
	name   string // identifier of the repository
	dir    string
	commit string          // that is being pushed
	at     nostr.Timestamp // of the newest state event
	pushed string          // the last that was acknowledged
	count  int
}

// announcePushed makes the pushers, whose repositories are announced and pushed, unless it has.
func (u *users) announcePushed(ctx context.Context, w *World) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for len(u.pushers) < pushing {
		p := &pusher{w: w, name: "pushed-under-load-" + strconv.Itoa(len(u.pushers)+1), at: nostr.Now()}
		var err error
		if p.who, err = outside.NewPerson(); err != nil {
			return err
		}
		if p.dir, p.pushed, err = w.workTree(ctx); err != nil {
			return err
		}
		if err := w.announce(ctx, p.who, p.name, p.dir, nil); err != nil {
			return err
		}
		if _, err := outside.RunGit(ctx, p.dir, "push", "-q", w.repository(p.who, p.name), "main"); err != nil {
			return err
		}
		u.pushers = append(u.pushers, p)
	}
	return nil
}

func (p *pusher) push(ctx context.Context, attempt int) (err error) {
	if attempt == 0 {
		p.count++
		if p.commit, err = outside.Commit(ctx, p.dir, "commit "+strconv.Itoa(p.count)); err != nil {
			return err
		}
		p.at = max(p.at+1, nostr.Now())
	}
	if err := p.w.state(ctx, p.who, p.name, p.dir, p.at); err != nil {
		return fmt.Errorf("state event: %w", goodbye(err))
	}
	if _, err := outside.RunGit(ctx, p.dir, "push", "-q", p.w.repository(p.who, p.name), "main"); err != nil {
		return err
	}
	p.pushed = p.commit
	return nil
}

// pushesAreThere clones what was pushed under load and compares it with what was acknowledged.
func (u *users) pushesAreThere(ctx context.Context, w *World, t *task) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.pushers {
		if err := w.cloneIs(ctx, p.who, p.name, p.pushed); err != nil {
			return err
		}
		t.say("the newest of %d commits pushed to %s is HEAD of a whole clone", p.count, p.name)
	}
	return nil
}

// listener is a client with an open subscription to what users write about the repository, which
// connects again when its connection ends and asks for what came meanwhile.
type listener struct {
	mu    sync.Mutex
	seen  map[string]bool
	dials int
}

// listen begins; the function that it returns ends it.
func listen(ctx context.Context, w *World) (*listener, func()) {
	ctx, cancel := context.WithCancel(ctx)
	l := &listener{seen: map[string]bool{}}
	began := nostr.Now() - 1
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			if err := l.connection(ctx, w, began); err != nil && ctx.Err() == nil {
				time.Sleep(250 * time.Millisecond)
			}
		}
	})
	return l, func() { cancel(); ended.Wait() }
}

func (l *listener) connection(ctx context.Context, w *World, since nostr.Timestamp) error {
	s, err := outside.Dial(ctx, w.relay(), nil)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	go func() {
		defer hangUp()
		s.KeepAlive(ctx)
	}()
	l.mu.Lock()
	l.dials++
	l.mu.Unlock()
	filter := nostr.Filter{Kinds: []int{gonostr.KindComment}, Authors: []string{w.owner.PubKey}, Since: &since, Limit: 5000}
	if err := s.Send(ctx, "REQ", "live", filter); err != nil {
		return err
	}
	for {
		m, err := s.Next(ctx)
		if err != nil {
			return err
		}
		var ev nostr.Event
		if len(m) == 3 && string(m[0]) == `"EVENT"` && json.Unmarshal(m[2], &ev) == nil {
			l.mu.Lock()
			l.seen[ev.ID] = true
			l.mu.Unlock()
		}
	}
}

func (l *listener) connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dials
}

// sawAll waits until all of these were seen.
func (l *listener) sawAll(ids []string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		l.mu.Lock()
		missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return l.seen[id] })
		l.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a client with an open subscription did not see %d of %d events, like %s", len(missing), len(ids), missing[0])
		}
		time.Sleep(100 * time.Millisecond)
	}
}
