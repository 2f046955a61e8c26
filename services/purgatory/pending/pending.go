// Package pending keeps account of what clients have pushed below refs/nostr/ before its event
// came, so that no stranger can fill the disk with it: by client, by repository and in all.
//
// The ledger is in memory. What it counts lies on disk beside the references
// (repository.WaitingPush), and is loaded when a worker takes a shard.
package pending

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"tendril.dev/services/purgatory/repository"
)

// Limits bound what waits. Zero allows nothing.
type Limits struct {
	ClientBytes, Bytes                     int64 // of one client, of all
	ClientRefs, RepositoryRefs, References int   // references of one client, in one repository, in all
}

// Refused is why a push may not wait for its event, in words for the user's terminal.
type Refused struct{ Reason string }

// Error is the reason.
func (r *Refused) Error() string { return r.Reason }

// Ledger is the account of one worker. It is safe for concurrent use.
type Ledger struct {
	limits Limits

	mu       sync.Mutex
	entries  map[repository.Place]map[string]repository.WaitingPush // by event
	byClient map[string]sum
	all      sum

	places map[string]map[repository.Place]bool // event → where
}

type sum struct {
	bytes int64
	refs  int
}

// New makes an empty ledger.
func New(l Limits) *Ledger {
	return &Ledger{
		limits: l, entries: map[repository.Place]map[string]repository.WaitingPush{}, byClient: map[string]sum{},
		places: map[string]map[repository.Place]bool{},
	}
}

// Set puts an entry into the account, in the place of one for the same event in the same
// repository.
func (l *Ledger) Set(at repository.Place, p repository.WaitingPush) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(at, p)
}

func (l *Ledger) set(at repository.Place, p repository.WaitingPush) {
	l.remove(at, p.Event)
	if l.entries[at] == nil {
		l.entries[at] = map[string]repository.WaitingPush{}
	}
	l.entries[at][p.Event] = p
	l.count(p, 1)
	if l.places[p.Event] == nil {
		l.places[p.Event] = map[repository.Place]bool{}
	}
	l.places[p.Event][at] = true
}

// Remove takes an entry out of the account: its event has come, or its reference has gone.
func (l *Ledger) Remove(at repository.Place, event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(at, event)
}

func (l *Ledger) remove(at repository.Place, event string) {
	p, is := l.entries[at][event]
	if !is {
		return
	}
	l.count(p, -1)
	if delete(l.places[event], at); len(l.places[event]) == 0 {
		delete(l.places, event)
	}
	if delete(l.entries[at], event); len(l.entries[at]) == 0 {
		delete(l.entries, at)
	}
}

func (l *Ledger) count(p repository.WaitingPush, by int) {
	add := func(s sum) sum { return sum{s.bytes + int64(by)*p.Bytes, s.refs + by} }
	l.all = add(l.all)
	if l.byClient[p.Client] = add(l.byClient[p.Client]); l.byClient[p.Client].refs == 0 {
		delete(l.byClient, p.Client)
	}
}

// Drop takes out of the account what lies in repositories for which which is true.
func (l *Ledger) Drop(which func(repository.Place) bool) {
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
// *Refused says why not.
func (l *Ledger) Check(at repository.Place, client string, events []string, bytes int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check(at, client, events, bytes)
}

// Admit is Check that puts the push into the account: its bytes count for the first of the events.
// It returns the entries.
func (l *Ledger) Admit(at repository.Place, client string, events []string, bytes int64) ([]repository.WaitingPush, error) {
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

func (l *Ledger) check(at repository.Place, client string, events []string, bytes int64) error {
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
		return refused("%d references from your address wait for their events, at most %d may", of.refs, l.limits.ClientRefs)
	case fresh > 0 && len(l.entries[at])+fresh > l.limits.RepositoryRefs:
		return refused("%d references of this repository wait for their events, at most %d may", len(l.entries[at]), l.limits.RepositoryRefs)
	case fresh > 0 && l.all.refs+fresh > l.limits.References:
		return refused("too many references wait for their events on this server")
	case of.bytes+bytes > l.limits.ClientBytes || of.bytes >= l.limits.ClientBytes:
		return refused("%s from your address wait for their events, this push would add %s, and at most %s may wait",
			size(of.bytes), size(bytes), size(l.limits.ClientBytes))
	case l.all.bytes+bytes > l.limits.Bytes || l.all.bytes >= l.limits.Bytes:
		return refused("too much waits for its events on this server")
	}
	return nil
}

func refused(format string, args ...any) error {
	return &Refused{"pushed without its event: " + fmt.Sprintf(format, args...) + "; " + advice}
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
func (l *Ledger) Waiting() (bytes int64, references int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.bytes, l.all.refs
}

// At returns where references wait for an event.
func (l *Ledger) At(event string) []repository.Place {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.places[event]))
}
