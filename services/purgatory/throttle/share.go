package throttle

import (
	"maps"
	"time"
)

const (
	// shareOf is the part of all requests at once that one party may have: a quarter.
	shareOf = 4
	// memory is how long it counts that a party had a turn.
	memory = 10 * time.Minute
	// manyParties is how many parties there are before those that are idle are forgotten.
	manyParties = 1024
)

// party is somebody whom requests are shared out to: an owner of servers, a network, an author, a
// client. It is forgotten when nothing of it runs or waits and its last turn is long ago.
type party struct {
	running int
	users   int       // who has it: what waits and what runs
	last    time.Time // when it had a turn; of one that is not remembered, memory before it came
}

// parties are those who have, had or wait for a turn.
type parties struct {
	by   map[string]*party
	many int
}

// of returns a party, which must be left again.
func (p *parties) of(name string, now time.Time) *party {
	one := p.by[name]
	if one == nil {
		p.forget(now)
		one = &party{last: now.Add(-memory)}
		p.by[name] = one
	}
	one.users++
	return one
}

func (one *party) leave() { one.users-- }

// forget drops the idle ones when there are twice as many as were left the last time.
func (p *parties) forget(now time.Time) {
	if len(p.by) < max(p.many, manyParties) {
		return
	}
	maps.DeleteFunc(p.by, func(_ string, one *party) bool { return one.users == 0 && now.Sub(one.last) >= memory })
	p.many = 2 * len(p.by)
}

// holders are the parties that a request counts for.
type holders struct {
	all            []*party
	author, client *party // of all; nil: there is none
}

func (h holders) below(share int) bool {
	for _, one := range h.all {
		if one.running >= share {
			return false
		}
	}
	return true
}

// last is when any of them had a turn.
func (h holders) last() (at time.Time) {
	for _, one := range h.all {
		if one.last.After(at) {
			at = one.last
		}
	}
	return at
}

func (h holders) begin(now time.Time) {
	for _, one := range h.all {
		one.running++
		one.users++
		one.last = now
	}
}

func (h holders) end(now time.Time) {
	for _, one := range h.all {
		one.running--
		one.users--
		one.last = now
	}
}

func (h holders) leave() {
	for _, one := range h.all {
		one.leave()
	}
}
