package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

const (
	// maxTargets bounds what one deletion request names.
	maxTargets = 2048
	// idleKept is how long a request is kept that has changed nothing and kept nothing out.
	idleKept = 30 * 24 * time.Hour
)

// request is what is noted of a request of an author. It has an end while it has changed nothing.
func (p *Policy) request(ev *nostr.Event, idle bool) proto.Request {
	r := proto.Request{At: p.now().Unix()}
	r.Vanishes = ev.Kind == nostr.KindVanish && !p.settings.IgnoreDeletions && p.hosting.Vanishes(ev)
	if idle {
		r.Until = p.now().Add(idleKept).Unix()
	}
	return r
}

// takenAway refuses what its author has asked to be taken away. A request that keeps something out
// is kept itself.
func takenAway(k Knowledge, c *Candidate) Decision {
	message := "blocked: its author has asked for its deletion"
	if k.Vanished(c.Event) {
		message = "blocked: its author has asked to vanish (NIP-62)"
	}
	d := rejected("deleted", message)
	if request := k.IdleRequest(c.Event); request != nil {
		d.Next = append(d.Next, &Candidate{
			Event: request, Raw: nostr.Encode(request), Lane: proto.LaneRelease, Source: proto.SourceRelease, Renews: true,
		})
	}
	return d
}

// deletion decides kind 5: stored, from anyone. It removes the held events of its author that it
// names by `e`, or by `a` up to its time; the accepted ones are removed by every projection of the
// log (NIP-09).
func (p *Policy) deletion(k Knowledge, c *Candidate) Decision {
	d, request := accepted(), c.Event
	floors := map[nostr.Address]*nostr.Event{}
	leaves, seen := map[string]string{}, map[string]bool{} // each tag once: anybody may write one ten thousand times
	for _, tag := range request.Tags {
		if len(tag) < 2 || tag[0] != "e" && tag[0] != "a" || seen[tag[0]+" "+tag[1]] {
			continue
		}
		if seen[tag[0]+" "+tag[1]] = true; len(seen) > maxTargets {
			return invalid(fmt.Errorf("a deletion request may name %d events and addresses at most", maxTargets))
		}
		var entries []*held.Entry
		var have *nostr.Event
		until := request.CreatedAt
		if tag[0] == "e" {
			entries, have, until = append(entries, k.Held().ByID(tag[1])), k.Accepted(tag[1]), math.MaxInt64
		} else if address, err := nostr.ParseAddress(tag[1]); err == nil &&
			(address.Kind == nostr.KindAnnouncement || address.Kind == nostr.KindState) { // no other is ever held
			entries, have = k.Held().At(address), k.AcceptedAt(address)
		}
		asked := func(ev *nostr.Event) bool { return ev.PubKey == request.PubKey && ev.CreatedAt <= until }
		for _, e := range entries {
			if e != nil && asked(e.Event) {
				d.drop(rememberDeleted, e)
				raise(floors, e.Event, tag[0])
			}
		}
		if have != nil && asked(have) {
			raise(floors, have, tag[0])
		}
		if have != nil && have.Kind == nostr.KindAnnouncement && asked(have) {
			leaves[have.ID] = have.Tags.GetD()
		}
	}
	if p.settings.IgnoreDeletions {
		d = accepted()
		d.Request = p.request(request, true)
		return d
	}
	d.Request = p.request(request, len(d.Drop) == 0 && !k.Reaches(request))
	d.leaves = leaves
	for _, address := range slices.SortedFunc(maps.Keys(floors),
		func(a, b nostr.Address) int { return cmp.Compare(a.String(), b.String()) }) {
		ev := floors[address]
		d.Floors = append(d.Floors, proto.Floor{Kind: address.Kind, Identifier: address.Identifier,
			CreatedAt: int64(ev.CreatedAt), ID: ev.ID})
	}
	return d
}

// raise keeps the newest version at each address that a deletion request names by its id. One that
// it names by the address is below the request's time, and needs no floor.
func raise(floors map[nostr.Address]*nostr.Event, ev *nostr.Event, tag string) {
	address, has := nostr.AddressOf(ev)
	if before := floors[address]; tag == "e" && has && (before == nil || nostr.Replaces(ev, before)) {
		floors[address] = ev
	}
}

// vanish decides kind 62 (NIP-62): stored, from anyone. Where it is meant for this service, all
// events of its author up to its time go: the held ones are dropped here, the accepted ones are
// removed by every projection of the log.
func (p *Policy) vanish(k Knowledge, c *Candidate) Decision {
	d, request := accepted(), c.Event
	if d.Request = p.request(request, true); !d.Request.Vanishes {
		return d
	}
	for _, e := range k.Held().By(request.PubKey) {
		if e.Event.CreatedAt <= request.CreatedAt {
			d.drop(rememberDeleted, e)
		}
	}
	d.leaves = map[string]string{}
	for _, ev := range k.AnnouncedBy(request.PubKey, request.CreatedAt) {
		d.leaves[ev.ID] = ev.Tags.GetD()
	}
	if len(d.Drop) > 0 || k.Reaches(request) {
		d.Request.Until = 0
	}
	return d
}
