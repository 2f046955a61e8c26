package hunt

import (
	"slices"
	"sync"

	"tendril.dev/services/purgatory/dossier"
)

// place is where requests wait: an identifier in the queue of a server.
type place struct{ domain, identifier string }

// path is what an identifier has to ask of a busy server, and what it asked there in this cycle.
// The cycle is over when everything was asked once. Attempts that come meanwhile add to it and take
// nothing away.
type path struct {
	requests []request
	tried    map[key][]string // objects that were asked for, in order
}

// todo reports whether a request is still to be made, for these objects.
func (p *path) todo(r request, objects []string) bool {
	asked, tried := p.tried[r.key()]
	return !tried || slices.ContainsFunc(objects, func(id string) bool {
		_, found := slices.BinarySearch(asked, id)
		return !found
	})
}

func (p *path) add(r request) {
	known := func(had request) bool { return had.key() == r.key() }
	if len(p.requests) < maxRequests && !slices.ContainsFunc(p.requests, known) {
		p.requests = append(p.requests, r)
	}
}

// rest is what an attempt has made of the requests of each server, and has left.
type rest struct {
	by   map[place]*path
	busy []place // where something is left
}

func (made *rest) at(at place) *path {
	if made.by[at] == nil {
		made.by[at] = &path{tried: map[key][]string{}}
	}
	return made.by[at]
}

func (made *rest) leave(at place, r request) {
	p := made.at(at)
	if len(p.requests) == 0 {
		made.busy = append(made.busy, at)
	}
	p.add(r)
}

func (made *rest) note(at place, r request, want dossier.Want) {
	made.at(at).tried[r.key()] = want.Objects
}

// paths are those of all identifiers. They are safe for concurrent use.
type paths struct {
	mu sync.Mutex
	by map[place]*path
}

func (ps *paths) has(at place) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.by[at] != nil
}

// add takes over what an attempt left. It reports whether it is the beginning of a cycle, so that
// the identifier has to join the server's queue.
func (ps *paths) add(at place, left *path) (first bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.by[at]
	if p == nil {
		if ps.by == nil {
			ps.by = map[place]*path{}
		}
		ps.by[at] = left
		return true
	}
	for _, r := range left.requests {
		p.add(r)
	}
	return false
}

// first returns a request that may be still to be made, or ends the cycle.
func (ps *paths) first(at place) (request, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.by[at]
	if p == nil || len(p.requests) == 0 {
		delete(ps.by, at)
		return request{}, false
	}
	return p.requests[0], true
}

// next takes out the next request for what is still missing, and notes it as tried; or it ends the
// cycle.
func (ps *paths) next(at place, missing Prospect) (request, dossier.Want, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for p := ps.by[at]; p != nil && len(p.requests) > 0; {
		r := p.requests[0]
		p.requests = p.requests[1:]
		if want, still := missing.want(r.owner); still && p.todo(r, want.Objects) {
			p.tried[r.key()] = want.Objects
			return r, want, true
		}
	}
	delete(ps.by, at)
	return request{}, dossier.Want{}, false
}

// putOff takes a request back that was not made after all; its turn is after all others.
func (ps *paths) putOff(at place, r request) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.by[at]; p != nil {
		delete(p.tried, r.key())
		p.add(r)
	}
}
