package discovery

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

const (
	// mostPeople bounds those whose relay lists count.
	mostPeople = 200_000
	// recount is how often it is worked out afresh who takes part, because events are deleted.
	recount = 24 * time.Hour
)

// threadKinds are the kinds of root events and of what lies below them.
var threadKinds = nostr.KindsThat(func(k nostr.Kind) bool { return k.Vouches && !k.Unlinked && k.Number != 0 })

// person is a key whose relay list counts: its owner takes part in a thread, or maintains a
// repository.
type person struct {
	wroteRoot bool // a root event
	takesPart bool // wrote a root event, or in a thread
	list      *nostr.RelayList
	listAt    nostr.Timestamp
}

// people are those who take part in the threads of served repositories, and the relay lists of
// those who have one (GRASP-03). It is safe for concurrent use.
type people struct {
	rules    config.Plus
	mu       sync.Mutex
	by       map[string]*person
	counting bool
	since    []*nostr.Event // taken in since the count began that is under way
}

func newPeople(rules config.Plus) *people { return &people{rules: rules, by: map[string]*person{}} }

// take takes in events that were accepted, and reports whether a target may change.
func (p *people) take(events ...*nostr.Event) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counting {
		p.since = append(p.since, events...)
	}
	for _, ev := range events {
		who, known := p.by[ev.PubKey]
		if !known {
			if len(p.by) >= mostPeople {
				continue
			}
			who = &person{}
		}
		before := *who
		root := nostr.KindOf(ev.Kind).Root
		switch {
		case ev.Kind == nostr.KindRelayList:
			if who.list == nil || ev.CreatedAt >= who.listAt {
				list := nostr.ParseRelayList(ev, p.rules.AllowPrivate)
				who.list, who.listAt = &list, ev.CreatedAt
			}
		case root:
			who.wroteRoot, who.takesPart = true, true
		case slices.Contains(threadKinds, ev.Kind) && len(nostr.ReferencesOf(ev).IDs) > 0:
			who.takesPart = true
		}
		if *who != before {
			p.by[ev.PubKey], changed = who, true
		}
	}
	return changed
}

// replace takes over what was counted afresh, with what was heard meanwhile, which the count may
// not have; nil: it has failed.
func (p *people) replace(counted *people) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if counted != nil {
		counted.take(p.since...)
		p.by = counted.by
	}
	p.counting, p.since = false, nil
}

// forget takes away who has asked to vanish (NIP-62), until they write again.
func (p *people) forget(pubkey string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.by, pubkey)
}

// snapshot is a copy of what is known now.
func (p *people) snapshot() map[string]person {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]person, len(p.by))
	for key, who := range p.by {
		all[key] = *who
	}
	return all
}

// follow counts who takes part, and keeps that in step with the log until ctx ends.
func (p *people) follow(ctx context.Context, source query.Source, heard query.Subscription, changed func()) error {
	running := make(chan error, 1)
	go func() { running <- heard.Run(ctx) }()
	for {
		pause := recount
		all, err := p.count(ctx, source)
		if p.replace(all); err == nil {
			changed()
		} else {
			pause = time.Minute
		}
		select {
		case err := <-running:
			return err
		case <-time.After(pause):
		}
	}
}

// count reads who takes part, and their lists.
func (p *people) count(ctx context.Context, source query.Source) (*people, error) {
	all := newPeople(p.rules)
	p.mu.Lock()
	p.counting = true
	p.mu.Unlock()
	if err := source.CatchUp(ctx); err != nil {
		return nil, err
	}
	for ev, err := range source.Query(ctx, nostr.Filter{Kinds: append(slices.Clone(threadKinds), nostr.KindRelayList)}) {
		if err != nil {
			return nil, err
		}
		all.take(ev)
	}
	return all, nil
}

// heard is what people are kept in step by.
func (p *people) heard(records []eventdb.Record) (changed bool) {
	for _, r := range records {
		changed = p.take(r.Event) || changed
	}
	return changed
}

// role is what a person is in a served repository.
type role struct {
	refs    []string // of those that they own, or maintain and have confirmed that
	invited bool     // in some
}

// roles are those of owners and maintainers of served repositories.
func (all *announcements) roles(now time.Time) map[string]*role {
	roles := map[string]*role{}
	of := func(key string) *role {
		if roles[key] == nil {
			roles[key] = &role{}
		}
		return roles[key]
	}
	for _, owners := range all.served {
		g := group{rules: all.rules, served: map[string]*announcement{}}
		for owner, a := range owners {
			if !a.expired(now) && !all.banned(a.ref, a.id) {
				g.served[owner] = a
			}
		}
		g.addHeld(nil)
		for owner, a := range g.served {
			if !g.keeps(a) {
				continue
			}
			ref := a.ref.String()
			of(owner).refs = append(of(owner).refs, ref)
			speaks := authority.Of(&g, owner)
			for _, key := range speaks.Confirmed[:min(len(speaks.Confirmed), maxMaintainers)] {
				if key != owner {
					of(key).refs = append(of(key).refs, ref)
				}
			}
			for _, key := range speaks.Invited[:min(len(speaks.Invited), maxMaintainers)] {
				of(key).invited = true
			}
		}
	}
	return roles
}

// further adds to the targets what people's relay lists lead to. Of relays that no
// announcement wants, at most so many are added; people take turns, and the first relay of each comes
// before the second of any.
func further(all map[string]proto.Target, by map[string]person, roles map[string]*role, plus config.Plus,
	bootstrap []nostr.RelayURL, ours func(nostr.RelayURL) bool) (refused int) {
	if plus.Off {
		return 0
	}
	f := furtherTargets{all: all, asked: map[string]bool{}, ours: ours}
	for key := range all {
		f.asked[key] = true
	}
	operators := slices.Concat(plus.Index, plus.Fallback, bootstrap)
	for _, url := range operators {
		f.asked[url.Key()] = true
	}
	keys := slices.Sorted(maps.Keys(by))
	for key := range roles {
		if _, known := by[key]; !known {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	keys = slices.DeleteFunc(keys, func(key string) bool { return !by[key].takesPart && roles[key] == nil })
	refused = f.admit(keys, by, plus.MaxRelays)
	for _, key := range keys {
		f.add(key, by[key], roles[key], plus, slices.Concat(plus.Index, bootstrap))
	}
	return refused
}

type furtherTargets struct {
	all   map[string]proto.Target
	asked map[string]bool // relays that may be targets
	ours  func(nostr.RelayURL) bool
}

// admit lets relays of lists be targets, up to a limit, and returns how many are not.
func (f *furtherTargets) admit(keys []string, by map[string]person, limit int) (refused int) {
	var lines [][]string
	listed := map[string]bool{}
	for _, key := range keys {
		list := by[key].list
		if list == nil {
			continue
		}
		var line []string
		for _, url := range slices.Concat(list.Read, list.Past) {
			if relay := url.Key(); !f.asked[relay] && !slices.Contains(line, relay) {
				line, listed[relay] = append(line, relay), true
			}
		}
		lines = append(lines, line)
	}
	taken := 0
	inTurn(lines, limit, func(relay string) bool {
		fresh := !f.asked[relay]
		if f.asked[relay] = true; fresh {
			taken++
		}
		return fresh
	})
	return len(listed) - taken
}

// add adds what one person's list leads to.
func (f *furtherTargets) add(key string, who person, is *role, plus config.Plus, index []nostr.RelayURL) {
	list := nostr.RelayList{Read: plus.Fallback, Past: plus.Fallback}
	asked := index
	if who.list != nil {
		list, asked = *who.list, who.list.Write
	}
	ref := proto.PersonRef(key)
	for _, url := range asked {
		f.want(url, ref, func(w *proto.Wanted) { w.Level, w.Lists = proto.LevelPerson, true }, false)
	}
	if who.wroteRoot {
		for _, url := range list.Read {
			f.want(url, ref, func(w *proto.Wanted) { w.Level, w.Roots = proto.LevelPerson, true }, true)
		}
	}
	if who.takesPart {
		for _, url := range list.Past {
			f.want(url, ref, func(w *proto.Wanted) { w.Level, w.Threads = proto.LevelPerson, true }, false)
		}
	}
	if is == nil {
		return
	}
	for _, url := range list.Read {
		for _, repository := range is.refs {
			f.want(url, repository, func(w *proto.Wanted) {
				if w.Level == "" {
					w.Level, w.Why = proto.LevelPast, key
				}
			}, false)
		}
	}
}

// want has something wanted of a relay, live or of the past.
func (f *furtherTargets) want(url nostr.RelayURL, ref string, change func(*proto.Wanted), live bool) {
	key := url.Key()
	if !f.asked[key] || f.ours(url) {
		return
	}
	t, known := f.all[key]
	if !known {
		t = proto.Target{URL: string(url), Further: true, Repos: map[string]proto.Wanted{}}
	}
	w := t.Repos[ref]
	change(&w)
	t.Repos[ref] = w
	t.Live, t.Past = t.Live || live, t.Past || !live
	f.all[key] = t
}
