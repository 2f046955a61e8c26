package purgatory

import (
	"slices"
	"sync"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
)

// contributors are those whose repositories for pull requests (GRASP-06) must be looked at when
// their identifier is settled, and from when on: something may have changed there, or what waits
// for its event will have waited long enough. All others are left alone, so that a crowd that waits
// costs nothing. Nobody is in it where the feature is off.
type contributors struct {
	on bool

	mu sync.Mutex
	by map[string]map[string]time.Time // identifier → key
}

func newContributors(on bool) *contributors {
	return &contributors{on: on, by: map[string]map[string]time.Time{}}
}

// note says that a contributor's repository must be looked at the next time.
func (c *contributors) note(identifier, pubkey string) {
	c.later(identifier, map[string]time.Time{pubkey: {}})
}

// later says when repositories of an identifier must be looked at, by their contributors. The
// earliest time counts.
func (c *contributors) later(identifier string, when map[string]time.Time) {
	if !c.on || len(when) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[identifier] == nil {
		c.by[identifier] = map[string]time.Time{}
	}
	for pubkey, at := range when {
		if before, is := c.by[identifier][pubkey]; !is || at.Before(before) {
			c.by[identifier][pubkey] = at
		}
	}
}

// take returns those to be looked at now, in order of their keys, and forgets them: whose time has
// come, and who has signed what is held. Who is noted later is for the next time.
func (c *contributors) take(d dossier.Dossier, now time.Time) []string {
	if !c.on {
		return nil
	}
	due := d.Offers()
	c.mu.Lock()
	defer c.mu.Unlock()
	for pubkey, at := range c.by[d.Identifier] {
		if !at.After(now) {
			due = append(due, pubkey)
		}
	}
	slices.Sort(due)
	due = slices.Compact(due)
	for _, pubkey := range due {
		delete(c.by[d.Identifier], pubkey)
	}
	if len(c.by[d.Identifier]) == 0 {
		delete(c.by, d.Identifier)
	}
	return due
}

// drop forgets those of a shard.
func (c *contributors) drop(shard int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for identifier := range c.by {
		if proto.ShardOf(identifier) == shard {
			delete(c.by, identifier)
		}
	}
}
