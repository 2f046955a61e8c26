// Package sessions keeps account of the sessions of reconciliation (NIP-77) of all connections: how
// many there are, which of them are silent, and what they keep in memory. A session needs nothing
// but its filter to go on. The events that were gathered for it are kept from one message to the
// next where there is room; else they are gathered again. So whoever opens sessions and goes away
// takes nothing from others.
package sessions

import (
	"container/list"
	"errors"
	"sync"
	"time"

	"tendril.dev/lib/reconcile"
)

// The reasons for which no session is opened.
var (
	ErrFull    = errors.New("there are as many sessions as are kept")
	ErrTooMuch = errors.New("the client has as many sessions as it may")
)

// shares is into how many shares the memory is divided, of which a client may have one.
const shares = 4

// Limits bound a table.
type Limits struct {
	Sessions, PerClient int
	Bytes               int64 // of sets that are kept
	Idle                time.Duration
}

// End is called when a session is ended by the table, and not by its owner, in a goroutine of its
// own. reason is for the client, in NIP-77's words.
type End func(reason string)

// Table is all sessions. It is safe for concurrent use.
type Table struct {
	limits Limits

	mu       sync.Mutex
	order    list.List // of *Session, the one that is silent longest first
	byClient map[string]*account
	kept     int64
}

// account is what a client has; it is never empty.
type account struct {
	sessions int
	kept     int64
}

// Session is one session.
type Session struct {
	table  *Table
	client string
	end    End
	timer  *time.Timer
	at     *list.Element // nil: ended
	items  reconcile.Packed
	holds  bool // items
}

// New makes an empty table.
func New(l Limits) *Table { return &Table{limits: l, byClient: map[string]*account{}} }

// Open adds a session. Where there are too many, the client that has most of them loses the one
// that is silent longest, if that is more than this client has. The error is [ErrFull] or
// [ErrTooMuch].
func (t *Table) Open(client string, end End) (*Session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	has := 0
	if a := t.byClient[client]; a != nil {
		has = a.sessions
	}
	if has >= t.limits.PerClient {
		return nil, ErrTooMuch
	}
	if t.order.Len() >= t.limits.Sessions && !t.makeWay(has) {
		return nil, ErrFull
	}
	s := &Session{table: t, client: client, end: end}
	s.at = t.order.PushBack(s)
	if t.byClient[client] == nil {
		t.byClient[client] = &account{}
	}
	t.byClient[client].sessions++
	s.timer = time.AfterFunc(t.limits.Idle, s.expire)
	return s, nil
}

// makeWay ends a session of a client that has more than so many; the caller holds the lock.
func (t *Table) makeWay(has int) bool {
	most := has
	for _, a := range t.byClient {
		most = max(most, a.sessions)
	}
	if most == has {
		return false
	}
	for e := t.order.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*Session); t.byClient[s.client].sessions == most {
			t.remove(s)
			go s.end("closed: the relay has as many sessions as it keeps, and your address has the most")
			return true
		}
	}
	return false
}

// expire ends a session that was silent for too long.
func (s *Session) expire() {
	if s.remove() {
		s.end("closed: nothing was heard for " + s.table.limits.Idle.String())
	}
}

// Touch notes that a session is alive. It reports false if it has ended.
func (s *Session) Touch() bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if s.at == nil {
		return false
	}
	s.table.order.MoveToBack(s.at)
	s.timer.Reset(s.table.limits.Idle)
	return true
}

// Close ends a session; its End is not called.
func (s *Session) Close() { s.remove() }

func (s *Session) remove() bool {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.table.remove(s)
}

// remove reports whether the session had not ended yet; the caller holds the lock.
func (t *Table) remove(s *Session) bool {
	if s.at == nil {
		return false
	}
	t.drop(s)
	s.timer.Stop()
	t.order.Remove(s.at)
	s.at = nil
	if a := t.byClient[s.client]; a.sessions > 1 {
		a.sessions--
	} else {
		delete(t.byClient, s.client)
	}
	return true
}

// Keep keeps the events of a session in memory if there is room. Sets of sessions that are silent
// longer make room.
func (s *Session) Keep(items reconcile.Packed) {
	t, size := s.table, bytes(items)
	t.mu.Lock()
	defer t.mu.Unlock()
	share := t.limits.Bytes / shares
	if s.at == nil || size > share {
		return
	}
	t.drop(s)
	mine := t.byClient[s.client]
	for e := t.order.Front(); e != nil && (mine.kept+size > share || t.kept+size > t.limits.Bytes); e = e.Next() {
		if o := e.Value.(*Session); o.client == s.client || mine.kept+size <= share {
			t.drop(o)
		}
	}
	s.items, s.holds = items, true
	mine.kept += size
	t.kept += size
}

// drop forgets what a session keeps; the caller holds the lock.
func (t *Table) drop(s *Session) {
	if !s.holds {
		return
	}
	size := bytes(s.items)
	t.byClient[s.client].kept -= size
	t.kept -= size
	s.items, s.holds = nil, false
}

// Items returns what is kept for a session; false: it has to be gathered again.
func (s *Session) Items() (reconcile.Packed, bool) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.items, s.holds
}

// Counts returns how many sessions there are, and the bytes that they keep.
func (t *Table) Counts() (sessions int, kept int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.order.Len(), t.kept
}

func bytes(items reconcile.Packed) int64 { return int64(cap(items)) * reconcile.ItemBytes }
