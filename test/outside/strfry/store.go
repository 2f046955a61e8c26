package strfry

import (
	"cmp"
	"container/heap"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

// entry is a stored event, with its JSON as it is sent.
type entry struct {
	item         reconcile.Item
	kind, author string   // keys of the index
	tags         []string // keys of the index, of the tags with one letter
	raw          []byte
}

// newest orders entries as they are answered: the newest first, and the lower id among equals.
func newest(a, b *entry) int {
	if a.item.CreatedAt != b.item.CreatedAt {
		return cmp.Compare(b.item.CreatedAt, a.item.CreatedAt)
	}
	return slices.Compare(a.item.ID[:], b.item.ID[:])
}

// store is events in memory. Every list in it has the order of [newest].
type store struct {
	mu  sync.RWMutex
	ids map[[32]byte]*entry
	all []*entry
	by  map[string][]*entry // by key
}

func newStore() *store {
	return &store{ids: map[[32]byte]*entry{}, by: map[string][]*entry{}}
}

// read makes an entry of an event's JSON, which it keeps.
func read(raw []byte) (*entry, *nostr.Event, error) {
	var ev nostr.Event
	if err := ev.UnmarshalJSON(raw); err != nil {
		return nil, nil, fmt.Errorf("read an event: %w", err)
	}
	e := &entry{kind: kindKey(ev.Kind), author: authorKey(ev.PubKey), raw: raw}
	e.item.CreatedAt = ev.CreatedAt
	if n, err := hex.Decode(e.item.ID[:], []byte(ev.ID)); err != nil || n != len(e.item.ID) {
		return nil, nil, fmt.Errorf("read an event: its id is %q", ev.ID)
	}
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && len(tag[0]) == 1 {
			e.tags = append(e.tags, tagKey(tag[0], tag[1]))
		}
	}
	slices.Sort(e.tags)
	e.tags = slices.Compact(e.tags)
	return e, &ev, nil
}

func kindKey(kind int) string            { return "kind:" + strconv.Itoa(kind) }
func authorKey(author string) string     { return "author:" + author }
func tagKey(letter, value string) string { return letter + ":" + value }

func (e *entry) keys() []string {
	return append([]string{e.kind, e.author}, e.tags...)
}

// load adds events, many at once, and returns how many were new.
func (s *store) load(entries []*entry) (added int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := map[string]bool{}
	for _, e := range entries {
		if s.ids[e.item.ID] != nil {
			continue
		}
		added++
		s.ids[e.item.ID] = e
		s.all = append(s.all, e)
		for _, key := range e.keys() {
			s.by[key] = append(s.by[key], e)
			touched[key] = true
		}
	}
	slices.SortFunc(s.all, newest)
	for key := range touched {
		slices.SortFunc(s.by[key], newest)
	}
	return added
}

// add adds one event and reports whether it is new.
func (s *store) add(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[e.item.ID] != nil {
		return false
	}
	s.ids[e.item.ID] = e
	s.all = insert(s.all, e)
	for _, key := range e.keys() {
		s.by[key] = insert(s.by[key], e)
	}
	return true
}

func insert(list []*entry, e *entry) []*entry {
	at, _ := slices.BinarySearchFunc(list, e, newest)
	return slices.Insert(list, at, e)
}

// size is how many events there are.
func (s *store) size() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.all)
}

// query returns the newest events that match, at most so many.
func (s *store) query(f *filter, most int) []*entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []*entry
	merge := merged(s.lists(f), f)
	for len(found) < most && len(merge) > 0 {
		e := merge[0][0]
		for len(merge) > 0 && merge[0][0] == e { // an event may be in several lists
			if merge[0] = merge[0][1:]; len(merge[0]) == 0 {
				heap.Pop(&merge)
			} else {
				heap.Fix(&merge, 0)
			}
		}
		if f.since != nil && e.item.CreatedAt < *f.since {
			break
		}
		if f.matches(e) {
			found = append(found, e)
		}
	}
	return found
}

// lists returns the shortest lists that all matching events are in.
func (s *store) lists(f *filter) [][]*entry {
	if f.ids != nil {
		var list []*entry
		for id := range f.ids {
			if e := s.ids[id]; e != nil {
				list = append(list, e)
			}
		}
		slices.SortFunc(list, newest)
		return [][]*entry{list}
	}
	best, size := [][]*entry{s.all}, len(s.all)
	for _, keys := range f.keys() {
		var lists [][]*entry
		n := 0
		for key := range keys {
			lists = append(lists, s.by[key])
			n += len(s.by[key])
		}
		if n < size {
			best, size = lists, n
		}
	}
	return best
}

// merging is a heap of lists, the one with the newest event on top. None is empty.
type merging [][]*entry

// merged begins each list at the filter's until.
func merged(lists [][]*entry, f *filter) merging {
	var m merging
	for _, list := range lists {
		if f.until != nil {
			at, _ := slices.BinarySearchFunc(list, *f.until, func(e *entry, until nostr.Timestamp) int {
				if e.item.CreatedAt > until {
					return -1
				}
				return 1
			})
			list = list[at:]
		}
		if len(list) > 0 {
			m = append(m, list)
		}
	}
	heap.Init(&m)
	return m
}

func (m merging) Len() int           { return len(m) }
func (m merging) Less(i, j int) bool { return newest(m[i][0], m[j][0]) < 0 }
func (m merging) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *merging) Push(x any)        { *m = append(*m, x.([]*entry)) }
func (m *merging) Pop() any {
	old := *m
	last := old[len(old)-1]
	*m = old[:len(old)-1]
	return last
}
