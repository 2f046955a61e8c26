package discovery

import (
	"math"
	"slices"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// maxMaintainers is how many maintainers of an announcement count here, nearest first: its
	// author says how many there are.
	maxMaintainers = 50
	// maxLooks bounds the walk to them.
	maxLooks = 1000
)

// want is what is wanted of one repository, and of which relays.
type want struct {
	ref    string
	relays []nostr.RelayURL
	repo   proto.Wanted
	// party is who brought it, and has its share of what is bounded: the owner of a served
	// announcement; of a held one the client or relay that it came from.
	party  string
	heldAt time.Time // of a held one
}

func (w *want) served() bool { return w.repo.Level == proto.LevelFull }

// wants works out what is wanted of all repositories.
func (all *announcements) wants(now time.Time) (wants []*want) {
	held := map[string][]*announcement{}
	for _, a := range all.held {
		if all.banned(a.ref, a.id) {
			continue
		}
		held[a.ref.Identifier] = append(held[a.ref.Identifier], a)
	}
	for identifier, owners := range all.served {
		g := group{served: map[string]*announcement{}}
		for owner, a := range owners {
			if !a.expired(now) && !all.banned(a.ref, a.id) {
				g.served[owner] = a
			}
		}
		g.addHeld(held[identifier])
		delete(held, identifier)
		wants = append(wants, g.wants()...)
	}
	for _, waiting := range held {
		g := group{}
		g.addHeld(waiting)
		wants = append(wants, g.wants()...)
	}
	return slices.DeleteFunc(wants, func(w *want) bool { // a maintainer's may be, who has no announcement
		ref, err := nostr.ParseRepoRef(w.ref)
		return err == nil && all.banned(ref, "")
	})
}

// group is the announcements of one identifier, by owner.
type group struct {
	served map[string]*announcement
	// waiting are the held announcements of owners of whom none is served that is as new, and known
	// the newest of each owner, served or held.
	waiting, known map[string]*announcement
}

func (g *group) addHeld(held []*announcement) {
	g.waiting, g.known = map[string]*announcement{}, map[string]*announcement{}
	for owner, a := range g.served {
		g.known[owner] = a
	}
	for _, a := range held {
		owner := a.ref.PubKey
		if a.replaces(g.known[owner]) {
			g.known[owner] = a
		}
		if a.replaces(g.served[owner]) && a.replaces(g.waiting[owner]) {
			g.waiting[owner] = a
		}
	}
}

func (g *group) wants() (wants []*want) {
	var hosts []string
	for owner, a := range g.served {
		if a.hosted {
			hosts = append(hosts, owner)
		}
	}
	trusted := map[string]bool{}
	for _, m := range maintainers(g.served, hosts, math.MaxInt, math.MaxInt) {
		trusted[m] = true
	}
	full := func(ref nostr.RepoRef, by *announcement) {
		wants = append(wants, &want{ref: ref.String(), relays: by.relays, party: by.ref.PubKey, repo: proto.Wanted{Level: proto.LevelFull}})
	}
	for owner, a := range g.served {
		if a.hosted || trusted[owner] {
			full(a.ref, a)
		}
		if !a.hosted {
			continue
		}
		// Events may name a maintainer who has no announcement here. They belong to this
		// repository, so its relays are asked for them. As at ingest only served announcements say
		// who is one.
		for _, m := range maintainers(g.served, []string{owner}, maxMaintainers, maxLooks) {
			if g.served[m] == nil {
				full(nostr.RepoRef{PubKey: m, Identifier: a.ref.Identifier}, a)
			}
		}
	}
	for owner, a := range g.waiting {
		authors := maintainers(g.known, []string{owner}, maxMaintainers, maxLooks)
		slices.Sort(authors)
		wants = append(wants, &want{
			ref: a.ref.String(), relays: a.relays, party: a.origin, heldAt: a.heldAt,
			repo: proto.Wanted{Level: proto.LevelStateOnly, Authors: authors},
		})
	}
	return wants
}

// maintainers walks from the sources, which count, to the keys that their announcements name, and
// on, nearest first; by has the announcements. It ends after so many keys, and after so many looks
// at one: strangers may make that a long way.
func maintainers(by map[string]*announcement, sources []string, most, looks int) (list []string) {
	seen := map[string]bool{}
	add := func(key string) {
		if !seen[key] && len(list) < most {
			seen[key] = true
			list = append(list, key)
		}
	}
	for _, s := range sources {
		add(s)
	}
	for next := 0; next < len(list); next++ {
		a := by[list[next]]
		if a == nil {
			continue
		}
		for _, m := range a.maintainers {
			if looks--; looks < 0 || len(list) >= most {
				return list
			}
			add(m)
		}
	}
	return list
}
