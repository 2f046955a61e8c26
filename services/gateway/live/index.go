package live

import (
	"slices"

	"tendril.dev/lib/nostr"
)

// index finds the filters that may match an event. Each filter stands under every value of one of
// its conditions, the one that is expected to be met least often.
type index map[key]map[*entry]struct{}

// key is one value of one condition. The zero key is for filters without ids, authors, tags and
// kinds.
type key struct {
	condition string // ids, authors, kinds, or "#" and the name of a tag
	kind      int
	value     string
}

// entry is one filter of a subscription.
type entry struct {
	sub    *Subscription
	filter nostr.Filter
}

// keysOf picks the condition that a filter is found by. A condition that lists nothing is never
// met, so it may be picked as well: the filter is then found nowhere.
func keysOf(f nostr.Filter) (keys []key) {
	named := func(condition string, values []string) []key {
		for _, v := range values {
			keys = append(keys, key{condition: condition, value: v})
		}
		return keys
	}
	switch name, tagged := fewest(f.Tags); {
	case f.IDs != nil:
		return named("ids", f.IDs)
	case tagged:
		return named("#"+name, f.Tags[name])
	case f.Authors != nil:
		return named("authors", f.Authors)
	case f.Kinds != nil:
		for _, k := range f.Kinds {
			keys = append(keys, key{condition: "kinds", kind: k})
		}
		return keys
	}
	return []key{{}}
}

// fewest is the tag condition with the fewest values.
func fewest(tags nostr.TagMap) (best string, ok bool) {
	for name, values := range tags {
		if values != nil && (!ok || len(values) < len(tags[best]) || len(values) == len(tags[best]) && name < best) {
			best, ok = name, true
		}
	}
	return best, ok
}

func (x index) add(e *entry) {
	for _, k := range keysOf(e.filter) {
		if x[k] == nil {
			x[k] = map[*entry]struct{}{}
		}
		x[k][e] = struct{}{}
	}
}

func (x index) remove(e *entry) {
	for _, k := range keysOf(e.filter) {
		if delete(x[k], e); len(x[k]) == 0 {
			delete(x, k)
		}
	}
}

// matching gives every filter to fn that matches.
func (x index) matching(ev *nostr.Event, fn func(*entry)) {
	met := map[key]struct{}{{}: {}, {condition: "ids", value: ev.ID}: {}, {condition: "authors", value: ev.PubKey}: {},
		{condition: "kinds", kind: ev.Kind}: {}}
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && len(tag[0]) == 1 {
			met[key{condition: "#" + tag[0], value: tag[1]}] = struct{}{}
		}
	}
	for k := range met {
		for e := range x[k] {
			if e.matches(ev, met) {
				fn(e)
			}
		}
	}
}

// matches is nostr.Filter.Matches for an event with very many tags: met has the keys of its tags.
func (e *entry) matches(ev *nostr.Event, met map[key]struct{}) bool {
	rest := e.filter
	rest.Tags = nil
	if !rest.Matches(ev) {
		return false
	}
	for name, values := range e.filter.Tags {
		k := key{condition: "#" + name}
		if values != nil && !slices.ContainsFunc(values, func(v string) bool {
			k.value = v
			_, has := met[k]
			return has
		}) {
			return false
		}
	}
	return true
}
