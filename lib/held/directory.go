package held

import (
	"cmp"
	"maps"
	"slices"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
)

// Directory finds held events by what decisions ask for. It is not safe for concurrent use, but the
// slices that it gives never change: an entry that comes is written behind them, and one that goes
// leaves in a copy.
type Directory struct {
	byKey        map[string]*Entry
	byID         map[string]*Entry
	byIdentifier map[string]map[string]*Entry // identifier -> key
	byKind       map[kindOf][]*Entry
	byAddress    map[nostr.Address][]*Entry
	byAuthor     map[string][]*Entry
	naming       map[nostr.RepoRef][]*Entry // announcements by a key that they list
	led          map[nostr.RepoRef][]*Entry // announcements by their only lead, where that is not their author
}

// kindOf names the events of a kind that are held of an identifier.
type kindOf struct {
	identifier string
	kind       int
}

// NewDirectory makes an empty one.
func NewDirectory() *Directory {
	return &Directory{
		byKey: map[string]*Entry{}, byID: map[string]*Entry{}, byIdentifier: map[string]map[string]*Entry{},
		byKind: map[kindOf][]*Entry{}, byAddress: map[nostr.Address][]*Entry{}, byAuthor: map[string][]*Entry{},
		naming: map[nostr.RepoRef][]*Entry{}, led: map[nostr.RepoRef][]*Entry{},
	}
}

// Add takes an entry in. No entry of its key may be there.
func (d *Directory) Add(e *Entry) {
	d.byKey[e.Key], d.byID[e.Event.ID] = e, e
	of := d.byIdentifier[e.Identifier]
	if of == nil {
		of = map[string]*Entry{}
		d.byIdentifier[e.Identifier] = of
	}
	of[e.Key] = e
	kind := kindOf{e.Identifier, e.Event.Kind}
	d.byKind[kind] = append(d.byKind[kind], e)
	d.byAuthor[e.Event.PubKey] = append(d.byAuthor[e.Event.PubKey], e)
	if address, ok := e.Address(); ok {
		d.byAddress[address] = append(d.byAddress[address], e)
	}
	if e.Announcement == nil {
		return
	}
	for _, key := range e.Announcement.Listed {
		name := nostr.RepoRef{PubKey: key, Identifier: e.Identifier}
		d.naming[name] = append(d.naming[name], e)
	}
	if lead, is := authority.LeadOf(e.Announcement); is {
		name := nostr.RepoRef{PubKey: lead, Identifier: e.Identifier}
		d.led[name] = append(d.led[name], e)
	}
}

// Remove takes the entry of a key out and returns it; nil if there is none.
func (d *Directory) Remove(key string) *Entry {
	e := d.byKey[key]
	if e == nil {
		return nil
	}
	delete(d.byKey, key)
	if d.byID[e.Event.ID] == e {
		delete(d.byID, e.Event.ID)
	}
	of := d.byIdentifier[e.Identifier]
	delete(of, key)
	if len(of) == 0 {
		delete(d.byIdentifier, e.Identifier)
	}
	removeFrom(d.byKind, kindOf{e.Identifier, e.Event.Kind}, e)
	removeFrom(d.byAuthor, e.Event.PubKey, e)
	if address, ok := e.Address(); ok {
		removeFrom(d.byAddress, address, e)
	}
	if e.Announcement == nil {
		return e
	}
	for _, key := range e.Announcement.Listed {
		removeFrom(d.naming, nostr.RepoRef{PubKey: key, Identifier: e.Identifier}, e)
	}
	if lead, is := authority.LeadOf(e.Announcement); is {
		removeFrom(d.led, nostr.RepoRef{PubKey: lead, Identifier: e.Identifier}, e)
	}
	return e
}

func removeFrom[K comparable](lists map[K][]*Entry, name K, e *Entry) {
	list := lists[name]
	i := slices.Index(list, e)
	if i < 0 {
		return
	}
	if len(list) == 1 {
		delete(lists, name)
		return
	}
	lists[name] = slices.Concat(list[:i], list[i+1:])
}

// ByID returns the held event of that id, or nil.
func (d *Directory) ByID(id string) *Entry { return d.byID[id] }

// At returns the held events at an address.
func (d *Directory) At(address nostr.Address) []*Entry { return slices.Clip(d.byAddress[address]) }

// By returns the held events of an author.
func (d *Directory) By(author string) []*Entry { return slices.Clip(d.byAuthor[author]) }

// Announcements returns the held announcements of an identifier.
func (d *Directory) Announcements(identifier string) []*Entry {
	return slices.Clip(d.byKind[kindOf{identifier, nostr.KindAnnouncement}])
}

// Naming returns the held announcements of an identifier that list this key as a maintainer.
func (d *Directory) Naming(identifier, pubkey string) []*Entry {
	return slices.Clip(d.naming[nostr.RepoRef{PubKey: pubkey, Identifier: identifier}])
}

// OfKinds returns the entries of an identifier whose events are of these kinds, in order of their
// keys.
func (d *Directory) OfKinds(identifier string, kinds ...int) (entries []*Entry) {
	for _, kind := range kinds {
		entries = append(entries, d.byKind[kindOf{identifier, kind}]...)
	}
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Compare(a.Key, b.Key) })
	return entries
}

// OfIdentifier returns the held events of an identifier, in order of their keys.
func (d *Directory) OfIdentifier(identifier string) []*Entry {
	return sorted(d.byIdentifier[identifier])
}

func (d *Directory) identifiers() []string { return slices.Sorted(maps.Keys(d.byIdentifier)) }

func (d *Directory) all() []*Entry { return sorted(d.byKey) }

func sorted(entries map[string]*Entry) []*Entry {
	return slices.SortedFunc(maps.Values(entries), func(a, b *Entry) int { return cmp.Compare(a.Key, b.Key) })
}
