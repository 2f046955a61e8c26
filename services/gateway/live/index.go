package live

import (
	"slices"

	"tendril.dev/lib/nostr"
)

// index finds the filters that may match an event. Each filter stands under every value of one of
// its conditions, the one that is expected to be met least often.
type index map[key][]place

// key is one value of one condition.
type key struct {
	condition condition
	tag       byte
	kind      uint16
	value     string
}

type condition byte

const (
	always condition = iota // a filter without ids, authors, tags and kinds
	byID
	byTag
	byAuthor
	byKind
)

// place is where an entry stands: in the bucket of its n-th key.
type place struct {
	entry *entry
	n     int
}

// entry is one filter of a subscription.
type entry struct {
	sub  *Subscription
	keys []key
	at   []int // position in the bucket of each key, so that removal needs no search

	since, until *nostr.Timestamp
	ids, authors set[string]
	kinds        set[int]
	tags         []tagCondition
}

type tagCondition struct {
	name   string
	values set[string]
}

func newEntry(sub *Subscription, f nostr.Filter) *entry {
	e := &entry{
		sub: sub, since: f.Since, until: f.Until,
		ids: setOf(f.IDs), authors: setOf(f.Authors), kinds: setOf(f.Kinds),
	}
	for name, values := range f.Tags {
		if values != nil {
			e.tags = append(e.tags, tagCondition{name, setOf(values)})
		}
	}
	e.keys = keysOf(f)
	e.at = make([]int, len(e.keys))
	return e
}

// keysOf picks the condition that a filter is found by. A condition that lists nothing is never
// met, so it may be picked as well: the filter is then found nowhere.
func keysOf(f nostr.Filter) []key {
	var keys []key
	switch name, tagged := fewest(f.Tags); {
	case f.IDs != nil:
		for _, v := range f.IDs {
			keys = append(keys, key{condition: byID, value: v})
		}
	case tagged:
		for _, v := range f.Tags[name] {
			keys = append(keys, key{condition: byTag, tag: name[0], value: v})
		}
	case f.Authors != nil:
		for _, v := range f.Authors {
			keys = append(keys, key{condition: byAuthor, value: v})
		}
	case f.Kinds != nil:
		for _, k := range f.Kinds {
			keys = append(keys, key{condition: byKind, kind: uint16(k)})
		}
	default:
		return []key{{}}
	}
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
}

func compareKeys(a, b key) int {
	if a.kind != b.kind {
		return int(a.kind) - int(b.kind)
	}
	if a.value < b.value {
		return -1
	}
	if a.value > b.value {
		return 1
	}
	return 0
}

// fewest is the tag condition with the fewest values.
func fewest(tags nostr.TagMap) (best string, ok bool) {
	for name, values := range tags {
		if len(name) == 1 && values != nil && (!ok || len(values) < len(tags[best]) || len(values) == len(tags[best]) && name < best) {
			best, ok = name, true
		}
	}
	return best, ok
}

func (x index) add(e *entry) {
	for n, k := range e.keys {
		e.at[n] = len(x[k])
		x[k] = append(x[k], place{e, n})
	}
}

func (x index) remove(e *entry) {
	for n, k := range e.keys {
		bucket := x[k]
		end := len(bucket) - 1
		moved := bucket[end]
		bucket[e.at[n]] = moved
		moved.entry.at[moved.n] = e.at[n]
		bucket[end] = place{}
		if end == 0 {
			delete(x, k)
		} else {
			x[k] = bucket[:end]
		}
	}
}

// candidates gives every filter to fn that may match; one may be given several times.
func (x index) candidates(ev *nostr.Event, fn func(*entry)) {
	give := func(k key) {
		for _, p := range x[k] {
			fn(p.entry)
		}
	}
	give(key{condition: byID, value: ev.ID})
	give(key{condition: byAuthor, value: ev.PubKey})
	give(key{condition: byKind, kind: uint16(ev.Kind)})
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && len(tag[0]) == 1 {
			give(key{condition: byTag, tag: tag[0][0], value: tag[1]})
		}
	}
	give(key{})
}

// matches is nostr.Filter.Matches for filters with very many values.
func (e *entry) matches(ev *nostr.Event) bool {
	if e.since != nil && ev.CreatedAt < *e.since || e.until != nil && ev.CreatedAt > *e.until {
		return false
	}
	if !e.ids.allows(ev.ID) || !e.authors.allows(ev.PubKey) || !e.kinds.allows(ev.Kind) {
		return false
	}
	for _, c := range e.tags {
		if !c.metBy(ev.Tags) {
			return false
		}
	}
	return true
}

func (c tagCondition) metBy(tags nostr.Tags) bool {
	for _, tag := range tags {
		if len(tag) >= 2 && tag[0] == c.name && c.values.allows(tag[1]) {
			return true
		}
	}
	return false
}

// set is a list of allowed values. The zero set is no condition; one that lists nothing allows
// nothing.
type set[T comparable] struct {
	list []T
	many map[T]struct{} // instead of a long list
}

// longList is from where on a map is faster than a look at each.
const longList = 16

func setOf[T comparable](values []T) set[T] {
	if len(values) < longList {
		return set[T]{list: values}
	}
	s := set[T]{many: make(map[T]struct{}, len(values))}
	for _, v := range values {
		s.many[v] = struct{}{}
	}
	return s
}

func (s set[T]) allows(v T) bool {
	if s.many != nil {
		_, ok := s.many[v]
		return ok
	}
	return s.list == nil || slices.Contains(s.list, v)
}
