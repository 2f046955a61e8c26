package discovery

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Bounds of what one announcement of a stranger may ask for: the first ones of its relays are
// taken.
const (
	maxServedRelays = 50
	maxHeldRelays   = 20
)

// announcement is what of an announcement matters here.
type announcement struct {
	ref     nostr.RepoRef
	id      string
	created nostr.Timestamp
	expires nostr.Timestamp // NIP-40; 0: never
	relays  []nostr.RelayURL
	cut     int                 // further relays that it lists
	roles   *nostr.Announcement // its reference and roles alone
	// lists: it lists our service. Whether that is hosted is for the whitelist to say. archived: it is
	// kept though it does not. One that is neither may be a maintainer's, which counts, or tell where
	// a repository went, which does not.
	lists, archived bool
	// Of held ones: when it came, and from whom.
	heldAt time.Time
	origin string
}

// replaces reports whether a takes the place of b, as in [nostr.Replaces].
func (a *announcement) replaces(b *announcement) bool {
	return b == nil || cmp.Or(cmp.Compare(a.created, b.created), strings.Compare(b.id, a.id)) > 0
}

func (a *announcement) expired(now time.Time) bool {
	return a.expires > 0 && int64(a.expires) <= now.Unix()
}

// announcements are all that are accepted or held: a fold of the log and of purgatory. It does no
// I/O, and is not safe for concurrent use.
type announcements struct {
	rules  config.Rules                        // its domain is our own: never a target
	served map[string]map[string]*announcement // by identifier and owner
	byID   map[string]*announcement            // the same, by the event's id
	held   map[string]*announcement            // by key of grasp-held; only those whose wait is not over
	// banned reports whether nothing is wanted of a repository, or for the sake of an announcement.
	banned func(ref nostr.RepoRef, id string) bool
}

func newAnnouncements(rules config.Rules) *announcements {
	return &announcements{
		rules: rules, served: map[string]map[string]*announcement{}, byID: map[string]*announcement{}, held: map[string]*announcement{},
		banned: func(nostr.RepoRef, string) bool { return false },
	}
}

// accept folds an accepted event in, and reports whether it may change a target. Only announcements
// and requests for their deletion or to vanish do. A request comes after the announcements that are
// before it in the log.
func (all *announcements) accept(ev *nostr.Event) (changed bool) {
	switch ev.Kind {
	case nostr.KindAnnouncement:
		return all.announce(ev)
	case nostr.KindDeletion:
		return all.delete(ev)
	case nostr.KindVanish:
		return all.vanish(ev)
	}
	return false
}

func (all *announcements) announce(ev *nostr.Event) (changed bool) {
	parsed, err := nostr.ParseAnnouncement(ev)
	if err != nil {
		return false // ingest refuses those
	}
	a := all.read(parsed, maxServedRelays)
	owners := all.served[a.ref.Identifier]
	if owners == nil {
		owners = map[string]*announcement{}
		all.served[a.ref.Identifier] = owners
	}
	old := owners[a.ref.PubKey]
	if !a.replaces(old) {
		return false
	}
	if old != nil {
		delete(all.byID, old.id)
	}
	owners[a.ref.PubKey], all.byID[a.id] = a, a
	return true
}

// delete carries a deletion request out (NIP-09).
func (all *announcements) delete(request *nostr.Event) (changed bool) {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		var a *announcement
		switch tag[0] {
		case "a":
			if ref, err := nostr.ParseRepoRef(tag[1]); err == nil {
				a = all.served[ref.Identifier][ref.PubKey]
			}
			if a != nil && a.created > request.CreatedAt {
				a = nil
			}
		case "e":
			a = all.byID[tag[1]]
		}
		if a != nil && a.ref.PubKey == request.PubKey {
			all.forget(a)
			changed = true
		}
	}
	return changed
}

// vanish carries a request to vanish out (NIP-62).
func (all *announcements) vanish(request *nostr.Event) (changed bool) {
	if !all.rules.Vanishes(request) {
		return false
	}
	for _, owners := range all.served {
		if a := owners[request.PubKey]; a != nil && a.created <= request.CreatedAt {
			all.forget(a)
			changed = true
		}
	}
	return changed
}

// remove drops an accepted event that has left the log.
func (all *announcements) remove(id string) (changed bool) {
	a := all.byID[id]
	if a != nil {
		all.forget(a)
	}
	return a != nil
}

func (all *announcements) forget(a *announcement) {
	owners := all.served[a.ref.Identifier]
	delete(owners, a.ref.PubKey)
	delete(all.byID, a.id)
	if len(owners) == 0 {
		delete(all.served, a.ref.Identifier)
	}
}

// hold notes an entry of purgatory under its key; nil or an event of another kind, or one whose
// wait is over, forgets the key.
func (all *announcements) hold(key string, e *held.Entry) (changed bool) {
	_, changed = all.held[key]
	delete(all.held, key)
	if e == nil || e.Announcement == nil || e.Phase != proto.PhaseWaiting {
		return changed
	}
	a := all.read(e.Announcement, maxHeldRelays)
	a.heldAt, a.origin = e.HeldAt, originOf(e)
	all.held[key] = a
	return true
}

// originOf is who brought what is held: keys cost nothing, addresses and relays do.
func originOf(e *held.Entry) string {
	switch {
	case e.Client != "":
		return "client " + e.Client
	case e.Relay != "":
		return "relay " + e.Relay
	}
	return "author " + e.Event.PubKey
}

// read takes from an announcement what matters, and no more relays than most. The event's text is
// not kept.
func (all *announcements) read(parsed *nostr.Announcement, most int) *announcement {
	a := &announcement{
		ref:     nostr.RepoRef{PubKey: strings.Clone(parsed.Ref.PubKey), Identifier: strings.Clone(parsed.Ref.Identifier)},
		id:      strings.Clone(parsed.Event.ID),
		created: parsed.Event.CreatedAt,
		lists:   all.rules.Lists(parsed), archived: all.rules.Archives(parsed),
	}
	if tag := parsed.Event.Tags.Find("expiration"); len(tag) > 1 {
		if at, err := strconv.ParseInt(tag[1], 10, 64); err == nil {
			a.expires = nostr.Timestamp(at)
		}
	}
	for _, url := range parsed.RelayURLs() {
		switch {
		case url.OnDomain(all.rules.Domain()), !all.rules.MayAsk(string(url)):
		case len(a.relays) < most:
			a.relays = append(a.relays, url)
		default:
			a.cut++
		}
	}
	a.roles = &nostr.Announcement{Ref: a.ref, Roles: nostr.Roles{Active: parsed.Active}}
	for _, key := range parsed.Listed {
		a.roles.Listed = append(a.roles.Listed, strings.Clone(key))
	}
	for _, key := range parsed.Leads {
		a.roles.Leads = append(a.roles.Leads, strings.Clone(key))
	}
	return a
}
