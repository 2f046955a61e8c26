package history

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// model says what must be here in the end, from the events that people have published and from the
// pushes that were acknowledged. It shares no code with the program but the type of an event.
type model struct {
	u      *universe
	domain string
	events []*published
	pushed []push
}

// published is an event, and what its author was told.
type published struct {
	*nostr.Event
	name     string
	accepted bool // OK true at least once
	// seen: it was served when its author deleted it. Then older versions must not count again.
	seen bool
}

// push is a push of a state.
type push struct {
	owner, identifier string
	state             *published
	acknowledged      bool
}

func tag(ev *nostr.Event, name string) string {
	for _, t := range ev.Tags {
		if len(t) > 1 && t[0] == name {
			return t[1]
		}
	}
	return ""
}

func all(ev *nostr.Event, name string) (values []string) {
	for _, t := range ev.Tags {
		if len(t) > 0 && t[0] == name {
			values = append(values, t[1:]...)
		}
	}
	return values
}

// newest orders newest first.
func newest(a, b *published) int {
	return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

// deleted reports whether an event's author has deleted it.
func (m *model) deleted(ev *published) bool {
	for _, d := range m.events {
		if d.Kind != 5 || d.PubKey != ev.PubKey || !d.accepted {
			continue
		}
		if slices.Contains(all(d.Event, "e"), ev.ID) {
			return true
		}
		address := address(ev)
		if address != "" && slices.Contains(all(d.Event, "a"), address) && ev.CreatedAt <= d.CreatedAt {
			return true
		}
	}
	return false
}

// address is that of an addressable event, or empty.
func address(ev *published) string {
	switch ev.Kind {
	case 30617:
		return "30617:" + ev.PubKey + ":" + tag(ev.Event, "d")
	case 30618:
		return "30618:" + ev.PubKey + ":" + tag(ev.Event, "d")
	}
	return ""
}

// fate is whether an event counts.
type fate int

const (
	dead fate = iota
	// unclear: timing decides, for example an older version of what was deleted before it was served.
	unclear
	alive
)

// fateOf says whether an event may count: it is not deleted, and no version that was deleted by its id
// is newer.
func (m *model) fateOf(ev *published) fate {
	if m.deleted(ev) {
		return dead
	}
	f := alive
	for _, other := range m.events {
		if address(other) == "" || address(other) != address(ev) || newest(other, ev) >= 0 || !m.deleted(other) {
			continue
		}
		if other.seen {
			return dead
		}
		f = unclear
	}
	return f
}

// announcement is the newest announcement of an owner that may count, or nil.
func (m *model) announcement(owner, identifier string) (ev *published, f fate) {
	for _, a := range m.of(30617, identifier) {
		if a.PubKey == owner {
			if f := m.fateOf(a); f != dead {
				return a, f
			}
		}
	}
	return nil, dead
}

// of are the events of a kind and an identifier, newest first.
func (m *model) of(kind int, identifier string) (list []*published) {
	for _, ev := range m.events {
		if ev.Kind == kind && tag(ev.Event, "d") == identifier {
			list = append(list, ev)
		}
	}
	slices.SortFunc(list, newest)
	return list
}

// confirmed are the confirmed maintainers of a coordinate: who is confirmed lists them, and they list
// somebody who is confirmed. clear is false where a fate that timing decides is part of it.
func (m *model) confirmed(owner, identifier string) (keys map[string]bool, clear bool) {
	keys, clear = map[string]bool{}, true
	lists := map[string][]string{}
	for _, ev := range m.of(30617, identifier) {
		if a, f := m.announcement(ev.PubKey, identifier); a != nil {
			lists[ev.PubKey] = all(a.Event, "maintainers")
			clear = clear && f == alive
		}
	}
	if lists[owner] == nil {
		return keys, clear
	}
	keys[owner] = true
	for grew := true; grew; {
		grew = false
		for key := range maps.Clone(keys) {
			for _, invited := range lists[key] {
				accepts := slices.ContainsFunc(lists[invited], func(k string) bool { return keys[k] })
				if !keys[invited] && accepts {
					keys[invited], grew = true, true
				}
			}
		}
	}
	return keys, clear
}

// refs are the branches and tags that a state names, and its HEAD.
func refs(state *nostr.Event) (by map[string]string, head string) {
	by = map[string]string{}
	for _, t := range state.Tags {
		switch {
		case len(t) < 2:
		case strings.HasPrefix(t[0], "refs/"):
			by[t[0]] = t[1]
		case t[0] == "HEAD":
			head = strings.TrimPrefix(t[1], "ref: ")
		}
	}
	return by, head
}

// data is whether the objects of a state can be in a repository.
func (m *model) data(state *published, owner, identifier string, people map[string]bool) fate {
	by, _ := refs(state.Event)
	f := alive
	for _, id := range by {
		f = min(f, m.object(id, owner, identifier, people))
	}
	return f
}

func (m *model) object(id, owner, identifier string, people map[string]bool) fate {
	if m.u.served[id] {
		return alive
	}
	f := dead
	for _, p := range m.pushed {
		by, _ := refs(p.state.Event)
		if p.identifier != identifier || !slices.Contains(slices.Collect(maps.Values(by)), id) {
			continue
		}
		if p.owner == owner && p.acknowledged {
			return alive
		}
		f = unclear
	}
	return f
}

// expectation is what a repository may look like.
type expectation struct {
	hosted fate
	// states are those of which one must be applied; empty: anything may be there.
	states []*published
	// certain: there is a state whose data is here for certain.
	certain bool
}

// expected says what an owner's repository must be.
func (m *model) expected(owner, identifier string) (e expectation) {
	a, f := m.announcement(owner, identifier)
	if a == nil {
		return e
	}
	e.hosted = f
	people, clear := m.confirmed(owner, identifier)
	for _, s := range m.of(30618, identifier) {
		if !people[s.PubKey] && clear {
			continue
		}
		f := min(m.fateOf(s), m.data(s, owner, identifier, people))
		if f == dead {
			continue
		}
		e.states = append(e.states, s)
		if f == alive && people[s.PubKey] && clear {
			e.certain = true
			break
		}
	}
	return e
}
