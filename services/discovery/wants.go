package discovery

import (
	"iter"
	"slices"
	"time"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// maxMaintainers is how many confirmed and invited maintainers of a repository count here, nearest
// first: its owner says how many there are.
const maxMaintainers = 50

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
		g := group{rules: all.rules, served: map[string]*announcement{}}
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
		g := group{rules: all.rules}
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
	rules  config.Rules
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

// By implements [authority.Announcements]: the newest of each author counts, accepted or held.
func (g *group) By(author string) *nostr.Announcement {
	if a := g.known[author]; a != nil {
		return a.roles
	}
	return nil
}

// LedBy is not asked for: here every owner's repository is looked at by itself.
func (g *group) LedBy(string) iter.Seq[*nostr.Announcement] {
	return func(func(*nostr.Announcement) bool) {}
}

// keeps reports whether a repository is hosted or archived here.
func (g *group) keeps(a *announcement) bool {
	return a.archived || a.lists && g.rules.MayHost(a.ref, g, func(owner string) bool {
		by := g.known[owner]
		return by != nil && by.lists
	})
}

func (g *group) wants() (wants []*want) {
	full := func(ref nostr.RepoRef, by *announcement) {
		wants = append(wants, &want{ref: ref.String(), relays: by.relays, party: by.ref.PubKey,
			repo: proto.Wanted{Level: proto.LevelFull}})
	}
	maintainers := map[string]bool{} // with an accepted announcement, of hosted repositories
	for owner, a := range g.served {
		if !g.keeps(a) {
			continue
		}
		full(a.ref, a)
		// Events may name a maintainer who has no accepted announcement here. They belong to this
		// repository, so its relays are asked for them: also for the acceptance of who is invited.
		of := authority.Of(g, owner)
		keys := slices.Concat(of.Confirmed, of.Invited)
		for _, key := range keys[:min(len(keys), maxMaintainers)] {
			switch {
			case key == owner:
			case g.served[key] != nil:
				maintainers[key] = true
			default:
				full(nostr.RepoRef{PubKey: key, Identifier: a.ref.Identifier}, a)
			}
		}
	}
	for key := range maintainers {
		if a := g.served[key]; !g.keeps(a) {
			full(a.ref, a)
		}
	}
	for _, a := range g.waiting {
		wants = append(wants, &want{
			ref: a.ref.String(), relays: a.relays, party: a.origin, heldAt: a.heldAt,
			repo: proto.Wanted{Level: proto.LevelStateOnly},
		})
	}
	return wants
}
