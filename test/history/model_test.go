package history

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// model says what must be here in the end, from the events that people have published, from the
// pushes that were acknowledged, and from what the operator has banned. It shares no code with the
// program but the type of an event.
type model struct {
	u      *universe
	domain string
	events []*published
	pushed []push
	bans   map[ban]bool
}

// ban is what the operator has banned; empty fields mean any.
type ban struct{ author, identifier, event string }

// published is an event, and what its author was told.
type published struct {
	*nostr.Event
	name     string
	accepted bool // OK true at least once
	stored   bool // OK true without a word: it is in the log
	// seen: it was served when its author deleted it. Then older versions must not count again.
	seen bool
	// counted: it was the state that counted when its author deleted it.
	counted bool
}

// push is a push of a state, or of the commit of a pull request, to the repository of an owner.
type push struct {
	owner, identifier string
	event             *published
	acknowledged      bool
	aged              bool // housekeeping may have removed since what nothing reaches
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

// banned reports whether an event, its author, or the repository that it is of is banned.
func (m *model) banned(ev *published) bool {
	if m.bans[ban{event: ev.ID}] || m.bans[ban{author: ev.PubKey}] {
		return true
	}
	return address(ev) != "" && m.bannedRepository(ev.PubKey, tag(ev.Event, "d"))
}

func (m *model) bannedRepository(owner, identifier string) bool {
	return m.bans[ban{author: owner}] || m.bans[ban{author: owner, identifier: identifier}] || m.bans[ban{identifier: identifier}]
}

// expires reports whether an event has an end. Every history is longer than all of these.
func expires(ev *published) bool { return tag(ev.Event, "expiration") != "" }

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

// fateOf says whether an event may count: it is not deleted, banned or expired, and no version that
// was deleted by its id is newer. An older version of what has expired or is banned by its id may
// have been replaced before that.
func (m *model) fateOf(ev *published) fate {
	if m.deleted(ev) || m.banned(ev) || expires(ev) {
		return dead
	}
	f := alive
	for _, other := range m.events {
		if address(other) == "" || address(other) != address(ev) || newest(other, ev) >= 0 {
			continue
		}
		switch {
		case m.deleted(other) && other.seen:
			return dead
		case m.deleted(other), expires(other), m.bans[ban{event: other.ID}]:
			f = unclear
		}
	}
	return f
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

// objectsOf are the objects for which an event waits.
func objectsOf(ev *nostr.Event) []string {
	if ev.Kind == 1618 || ev.Kind == 1619 {
		return []string{tag(ev, "c")}
	}
	by, _ := refs(ev)
	return slices.Collect(maps.Values(by))
}

// data is whether the objects of an event can be in the repository of an owner: from a git server, or
// from a push to this repository or, as far as they share objects, to one of the same identifier. A
// commit that was pushed for another pull request does not count for certain.
func (m *model) data(ev *published, owner, identifier string) fate {
	f := alive
	for _, id := range objectsOf(ev.Event) {
		f = min(f, m.object(ev, id, owner, identifier))
	}
	return f
}

func (m *model) object(ev *published, id, owner, identifier string) fate {
	if m.u.served[id] {
		return alive
	}
	f := dead
	for _, p := range m.pushed {
		pushed := objectsOf(p.event.Event)
		if p.identifier != identifier || !slices.ContainsFunc(pushed, func(tip string) bool { return m.u.reaches(tip, id) }) {
			continue
		}
		here := p.owner == owner && p.acknowledged && !p.aged && slices.Contains(pushed, id)
		if here && (p.event == ev || ev.Kind == 30618 && p.event.Kind == 30618) {
			return alive
		}
		f = unclear
	}
	return f
}

// expectation is what a repository may look like.
type expectation struct {
	hosted fate
	banned bool
	// states are those of which one must be applied, if any is; free: what was there may have stayed.
	states []*published
	free   bool
	// certain: in any case a state is applied whose data is here.
	certain bool
	// hasData: there is a state that names an object which is here for certain.
	hasData bool
	// people are the confirmed maintainers in any case; maybe, those that may be.
	people, maybe map[string]bool
}

// expected says what an owner's repository must be.
func (m *model) expected(owner, identifier string) (e expectation) {
	possibilities, complete := m.possibilities(identifier)
	hosted, not := false, false
	e.maybe = map[string]bool{}
	e.certain, e.hasData = complete, complete
	e.banned = m.bannedRepository(owner, identifier)
	for _, p := range possibilities {
		if p[owner] == nil || !m.listsUs(p[owner]) {
			not, e.certain, e.hasData = true, false, false
			continue
		}
		hosted = true
		people := p.confirmed(owner)
		if e.people == nil {
			e.people = maps.Clone(people)
		}
		maps.DeleteFunc(e.people, func(key string, _ bool) bool { return !people[key] })
		maps.Copy(e.maybe, people)
		states, certain, data := m.statesFor(people, owner, identifier)
		for _, s := range states {
			if !slices.Contains(e.states, s) {
				e.states = append(e.states, s)
			}
		}
		e.certain, e.hasData = e.certain && certain, e.hasData && data
		e.free = e.free || !certain
	}
	switch {
	case hosted && not || hosted && !complete:
		e.hosted = unclear
	case hosted:
		e.hosted = alive
	}
	e.free = e.free || !complete
	return e
}

// listsUs reports whether an announcement lists this server.
func (m *model) listsUs(ev *published) bool {
	return slices.ContainsFunc(all(ev.Event, "clone"), func(url string) bool { return strings.Contains(url, "//"+m.domain+"/") })
}

// statesFor are the states of which one must be applied where these people are confirmed. certain is
// false if it may be none of them. data: one of them names an object that is there, and no newer one
// of its author, without objects, can have taken its place before these came. An owner who only
// points to a lead gets copies of what references reach: there the newer one may be anybody's.
func (m *model) statesFor(people map[string]bool, owner, identifier string) (states []*published, certain, data bool) {
	replaced := map[string]bool{} // places of newer states without objects
	for _, s := range m.of(30618, identifier) {
		if !people[s.PubKey] {
			continue
		}
		f := min(m.fateOf(s), m.data(s, owner, identifier))
		empty := len(objectsOf(s.Event)) == 0
		place := s.PubKey
		if !people[owner] {
			place = "" // all share it
		}
		data = data || f == alive && !empty && !replaced[place]
		replaced[place] = replaced[place] || empty && f != dead
		if f == dead || certain {
			continue
		}
		states = append(states, s)
		certain = f == alive
	}
	return states, certain, data
}

// cutOff reports whether a push that was not acknowledged may have left these references: git sets them
// one by one where a push does not ask for all or nothing, and its process may be killed in between.
// The next worker makes them those of a state again, unless no one has authority any more.
func (m *model) cutOff(owner, identifier string, got map[string]string) bool {
	return slices.ContainsFunc(m.pushed, func(p push) bool {
		if p.acknowledged || p.owner != owner || p.identifier != identifier || p.event.Kind != 30618 {
			return false
		}
		left := maps.Clone(got)
		for _, state := range m.of(30618, identifier) {
			by, _ := refs(state.Event)
			maps.DeleteFunc(left, func(name, id string) bool { return by[name] == id })
		}
		return len(left) == 0
	})
}

// isCounting reports whether a state is the one that counts, for certain, in its author's or any other
// repository.
func (m *model) isCounting(state *published, owners []string) bool {
	return slices.ContainsFunc(owners, func(owner string) bool {
		e := m.expected(owner, tag(state.Event, "d"))
		return e.hosted == alive && e.certain && len(e.states) == 1 && e.states[0] == state
	})
}

// emptied reports whether a repository must have no branches and tags: every state that it can ever
// have had is deleted, and the one deleted last was that which counted.
func (m *model) emptied(owner, identifier string) bool {
	e := m.expected(owner, identifier)
	if e.hosted != alive || e.banned || len(e.states) > 0 {
		return false
	}
	var last *published
	at := -1
	for _, s := range m.of(30618, identifier) {
		if m.data(s, owner, identifier) == dead {
			continue
		}
		n := slices.IndexFunc(m.events, func(d *published) bool {
			return d.Kind == 5 && d.accepted && d.PubKey == s.PubKey && slices.Contains(all(d.Event, "e"), s.ID)
		})
		if n < 0 || !e.people[s.PubKey] {
			return false
		}
		if n > at {
			last, at = s, n
		}
	}
	return last != nil && last.counted && last.seen
}
