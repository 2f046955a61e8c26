package outside

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"sync"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

// entry is a stored event, with its JSON as it is sent.
type entry struct {
	item reconcile.Item
	keys []string // of the index: kind, author, id and tags with one letter
	raw  []byte
}

// newest orders entries as they are answered: the newest first, and the lower id among equals.
func newest(a, b *entry) int {
	return cmp.Or(cmp.Compare(b.item.CreatedAt, a.item.CreatedAt), bytes.Compare(a.item.ID[:], b.item.ID[:]))
}

// store is events in memory. Every list in it has the order of [newest].
type store struct {
	mu  sync.RWMutex
	all []*entry
	by  map[string][]*entry // by key
}

func newStore() *store { return &store{by: map[string][]*entry{}} }

// read makes an entry of an event's JSON, which it keeps.
func read(raw []byte) (*entry, *nostr.Event, error) {
	var ev nostr.Event
	if err := ev.UnmarshalJSON(raw); err != nil {
		return nil, nil, fmt.Errorf("read an event: %w", err)
	}
	e := &entry{keys: []string{kindKey(ev.Kind), "author:" + ev.PubKey, "id:" + ev.ID}, raw: raw}
	e.item.CreatedAt = ev.CreatedAt
	if n, err := hex.Decode(e.item.ID[:], []byte(ev.ID)); err != nil || n != len(e.item.ID) {
		return nil, nil, fmt.Errorf("read an event: its id is %q", ev.ID)
	}
	for _, tag := range ev.Tags {
		if len(tag) < 2 || len(tag[0]) != 1 {
			continue
		}
		if key := tag[0] + ":" + tag[1]; !slices.Contains(e.keys, key) {
			e.keys = append(e.keys, key)
		}
	}
	return e, &ev, nil
}

func kindKey(kind int) string { return "kind:" + strconv.Itoa(kind) }

// known reports whether the event is there already.
func (s *store) known(e *entry) bool { return len(s.by[e.keys[2]]) > 0 }

// load adds events, many at once.
func (s *store) load(entries []*entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := map[string]bool{}
	for _, e := range entries {
		if s.known(e) {
			continue
		}
		s.all = append(s.all, e)
		for _, key := range e.keys {
			s.by[key] = append(s.by[key], e)
			touched[key] = true
		}
	}
	slices.SortFunc(s.all, newest)
	for key := range touched {
		slices.SortFunc(s.by[key], newest)
	}
}

// add adds one event and reports whether it is new.
func (s *store) add(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known(e) {
		return false
	}
	s.all = insert(s.all, e)
	for _, key := range e.keys {
		s.by[key] = insert(s.by[key], e)
	}
	return true
}

func insert(list []*entry, e *entry) []*entry {
	at, _ := slices.BinarySearchFunc(list, e, newest)
	return slices.Insert(list, at, e)
}

// filter is a filter of NIP-01, with its conditions as keys of the index: an event has one of each.
type filter struct {
	nostr.Filter
	limit int
	any   []map[string]bool
}

// readFilter reads a filter, for no more than so many events.
func readFilter(raw json.RawMessage, most int) (*filter, error) {
	f := &filter{limit: most}
	if err := json.Unmarshal(raw, &f.Filter); err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}
	if f.Limit > 0 || f.LimitZero {
		f.limit = min(f.Limit, most)
	}
	either := func(prefix string, values []string) {
		if values == nil {
			return
		}
		keys := map[string]bool{}
		for _, v := range values {
			keys[prefix+v] = true
		}
		f.any = append(f.any, keys)
	}
	var kinds []string
	for _, k := range f.Kinds {
		kinds = append(kinds, strconv.Itoa(k))
	}
	either("kind:", kinds)
	either("author:", f.Authors)
	either("id:", f.IDs)
	for letter, values := range f.Tags {
		either(letter+":", values)
	}
	return f, nil
}

func (f *filter) matches(e *entry) bool {
	if f.Since != nil && e.item.CreatedAt < *f.Since || f.Until != nil && e.item.CreatedAt > *f.Until {
		return false
	}
	for _, keys := range f.any {
		if !slices.ContainsFunc(e.keys, func(key string) bool { return keys[key] }) {
			return false
		}
	}
	return true
}

// query returns the newest events that match, at most so many.
func (s *store) query(f *filter, most int) (found []*entry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, list := range s.lists(f) {
		from, matching := 0, 0
		if f.Until != nil {
			from = sort.Search(len(list), func(i int) bool { return list[i].item.CreatedAt <= *f.Until })
		}
		for _, e := range list[from:] {
			if matching == most || f.Since != nil && e.item.CreatedAt < *f.Since {
				break
			}
			if f.matches(e) {
				found = append(found, e)
				matching++
			}
		}
	}
	slices.SortFunc(found, newest)
	found = slices.Compact(found) // an event may be in several lists
	return found[:min(len(found), most)]
}

// lists returns the shortest lists that all matching events are in.
func (s *store) lists(f *filter) [][]*entry {
	best, size := [][]*entry{s.all}, len(s.all)
	for _, keys := range f.any {
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
