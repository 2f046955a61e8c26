package purgatory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// loadingTime is how long a push waits for the account to be read from the disk.
const loadingTime = 20 * time.Second

// pushes is the account of references that were pushed before their events, in the shards for which
// it has been read from the disk.
type pushes struct {
	*account

	mu   sync.Mutex
	read map[int]chan struct{} // shard → closed when it has been read
}

func newPushes(s config.Git) *pushes {
	return &pushes{read: map[int]chan struct{}{}, account: newAccount(waitingLimits{
		ClientBytes: s.PendingPushBytesPerClient, Bytes: s.PendingPushBytes,
		ClientRefs: s.PendingPushesPerClient, RepositoryRefs: s.PendingPushesPerRepository, References: s.PendingPushes,
	})}
}

// opened returns what is closed when a shard has been read.
func (p *pushes) opened(shard int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read[shard] == nil {
		p.read[shard] = make(chan struct{})
	}
	return p.read[shard]
}

func (p *pushes) isOpen(shard int) bool {
	select {
	case <-p.opened(shard):
		return true
	default:
		return false
	}
}

// open says that a shard has been read.
func (p *pushes) open(shard int) {
	if !p.isOpen(shard) {
		close(p.opened(shard))
	}
}

// close forgets a shard: another worker changes what lies there.
func (p *pushes) close(shard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if opened := p.read[shard]; opened != nil {
		select {
		case <-opened:
			delete(p.read, shard)
		default: // pushes wait for it
		}
	}
	p.Drop(func(at repository.Place) bool { return proto.ShardOf(at.Identifier) == shard })
}

// wait returns when an identifier's shard has been read. A *repostate.Refused says that it takes
// too long.
func (p *pushes) wait(ctx context.Context, identifier string) error {
	ctx, cancel := context.WithTimeout(ctx, loadingTime)
	defer cancel()
	select {
	case <-p.opened(proto.ShardOf(identifier)):
		return nil
	case <-ctx.Done():
		return &repostate.Refused{Reason: "the server has just started and still counts what waits for its event; push again in a moment"}
	}
}

// checkPending reports whether there is room at a place for what a push brings without its events,
// which are given. A *repostate.Refused says why not.
func (w *worker) checkPending(ctx context.Context, at repository.Place, push githttp.PushRequest, events []string) error {
	if len(events) == 0 {
		return nil
	}
	if err := w.pending.wait(ctx, at.Identifier); err != nil {
		return err
	}
	return w.pending.Check(at, push.Client, events, push.PackBytes)
}

// arriving is what a push brings without its event.
type arriving struct {
	repo   *repository.Repo
	notes  []repository.WaitingPush
	before int64 // bytes of the repository's own before it
}

// admitPending puts into the account what a push brings without its events, which are given,
// durably, before its references are there. The bytes of a push that a state allows are its
// owner's, and are not counted. The caller has the identifier's lock.
func (w *worker) admitPending(ctx context.Context, repo *repository.Repo, push githttp.PushRequest, events []string, byState bool) (arriving, error) {
	if byState {
		push.PackBytes = 0
	}
	at := repo.Place()
	if err := w.checkPending(ctx, at, push, events); err != nil || len(events) == 0 {
		return arriving{}, err
	}
	a := arriving{repo: repo}
	var err error
	if a.before, err = repo.Bytes(); err != nil {
		return arriving{}, err
	}
	if byState {
		a.before = -1 // not to be counted
	}
	if a.notes, err = w.pending.Admit(at, push.Client, events, push.PackBytes); err != nil {
		return arriving{}, err
	}
	for _, note := range a.notes {
		if err := repo.SetWaiting(note); err != nil {
			for _, note := range a.notes {
				w.pending.Remove(at, note.Event)
			}
			return arriving{}, err
		}
	}
	return a, nil
}

// countPending corrects the account by what a push has made of its bytes: a pack that refers to
// objects which are here takes up more than was sent. Settling removes what did not become a
// reference.
func (w *worker) countPending(a arriving) {
	if len(a.notes) == 0 || a.before < 0 {
		return
	}
	at := a.repo.Place()
	after, err := a.repo.Bytes()
	note := a.notes[0]
	if err != nil || after-a.before <= note.Bytes {
		return
	}
	note.Bytes = after - a.before
	if err := a.repo.SetWaiting(note); err != nil {
		w.log.Warn("the size of a waiting push could not be recorded", "repository", at, "error", err)
	}
	w.pending.Set(at, note)
}

// waitingLimits bound what waits. Zero allows nothing.
type waitingLimits struct {
	ClientBytes, Bytes                     int64 // of one client, of all
	ClientRefs, RepositoryRefs, References int   // references of one client, in one repository, in all
}

// account is the account of one worker. It is safe for concurrent use.
type account struct {
	limits waitingLimits

	mu       sync.Mutex
	entries  map[repository.Place]map[string]repository.WaitingPush // by event
	byClient map[string]sum
	all      sum
}

type sum struct {
	bytes int64
	refs  int
}

func newAccount(l waitingLimits) *account {
	return &account{
		limits: l, entries: map[repository.Place]map[string]repository.WaitingPush{}, byClient: map[string]sum{},
	}
}

// Set puts an entry into the account, in the place of one for the same event in the same
// repository.
func (l *account) Set(at repository.Place, p repository.WaitingPush) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(at, p)
}

func (l *account) set(at repository.Place, p repository.WaitingPush) {
	l.remove(at, p.Event)
	if l.entries[at] == nil {
		l.entries[at] = map[string]repository.WaitingPush{}
	}
	l.entries[at][p.Event] = p
	l.count(p, 1)
}

// Remove takes an entry out of the account: its event has come, or its reference has gone.
func (l *account) Remove(at repository.Place, event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(at, event)
}

func (l *account) remove(at repository.Place, event string) {
	p, is := l.entries[at][event]
	if !is {
		return
	}
	l.count(p, -1)
	if delete(l.entries[at], event); len(l.entries[at]) == 0 {
		delete(l.entries, at)
	}
}

func (l *account) count(p repository.WaitingPush, by int) {
	add := func(s sum) sum { return sum{s.bytes + int64(by)*p.Bytes, s.refs + by} }
	l.all = add(l.all)
	if l.byClient[p.Client] = add(l.byClient[p.Client]); l.byClient[p.Client].refs == 0 {
		delete(l.byClient, p.Client)
	}
}

// Drop takes out of the account what lies in repositories for which which is true.
func (l *account) Drop(which func(repository.Place) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, entries := range l.entries {
		if !which(at) {
			continue
		}
		for event := range entries {
			l.remove(at, event)
		}
	}
}

// Check reports whether a push of that many bytes may wait for the events, without any change. A
// *repostate.Refused says why not.
func (l *account) Check(at repository.Place, client string, events []string, bytes int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check(at, client, events, bytes)
}

// Admit is Check that puts the push into the account: its bytes count for the first of the events.
// It returns the entries.
func (l *account) Admit(at repository.Place, client string, events []string, bytes int64) ([]repository.WaitingPush, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(at, client, events, bytes); err != nil {
		return nil, err
	}
	var admitted []repository.WaitingPush
	for _, event := range events {
		p := repository.WaitingPush{Event: event, Client: client, Bytes: bytes + l.entries[at][event].Bytes}
		l.set(at, p)
		admitted = append(admitted, p)
		bytes = 0
	}
	return admitted, nil
}

const advice = "publish the pull request's event first, then push: what has its event is not counted"

func (l *account) check(at repository.Place, client string, events []string, bytes int64) error {
	fresh := 0
	for _, event := range events {
		if _, again := l.entries[at][event]; !again {
			fresh++
		}
	}
	of := l.byClient[client]
	switch {
	case len(events) == 0:
		return nil
	case fresh > 0 && of.refs+fresh > l.limits.ClientRefs:
		return tooMuch("%d references from your address wait for their events, at most %d may", of.refs, l.limits.ClientRefs)
	case fresh > 0 && len(l.entries[at])+fresh > l.limits.RepositoryRefs:
		return tooMuch("%d references of this repository wait for their events, at most %d may", len(l.entries[at]), l.limits.RepositoryRefs)
	case fresh > 0 && l.all.refs+fresh > l.limits.References:
		return tooMuch("too many references wait for their events on this server")
	case of.bytes+bytes > l.limits.ClientBytes || of.bytes >= l.limits.ClientBytes:
		return tooMuch("%s from your address wait for their events, this push would add %s, and at most %s may wait",
			size(of.bytes), size(bytes), size(l.limits.ClientBytes))
	case l.all.bytes+bytes > l.limits.Bytes || l.all.bytes >= l.limits.Bytes:
		return tooMuch("too much waits for its events on this server")
	}
	return nil
}

func tooMuch(format string, args ...any) error {
	return &repostate.Refused{Reason: "pushed without its event: " + fmt.Sprintf(format, args...) + "; " + advice}
}

// size is how people read a number of bytes.
func size(bytes int64) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1000<<10:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// Waiting returns what waits in all: bytes and references.
func (l *account) Waiting() (bytes int64, references int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.bytes, l.all.refs
}
