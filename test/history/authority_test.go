package history

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"tendril.dev/lib/nostr"
)

// roles are what an announcement says of who speaks for its repository. It is read by the rules of
// the page on authority, without the code of the program.
type roles struct {
	active bool     // its author is an active maintainer of it
	listed []string // the keys that it invites or confirms
	leads  []string
}

// rolesOf reads the role tags of an announcement, or its maintainers tag.
func rolesOf(ev *nostr.Event) (r roles) {
	var named, activeSelf, hasRoles bool
	add := func(list *[]string, key string) {
		if !slices.Contains(*list, key) {
			*list = append(*list, key)
		}
	}
	for _, t := range ev.Tags {
		if len(t) < 2 || t[0] != "M" && t[0] != "m" && t[0] != "o" {
			hasRoles = hasRoles || len(t) == 1 && (t[0] == "M" || t[0] == "m" || t[0] == "o")
			continue
		}
		hasRoles = true
		self := strings.ToLower(t[1]) == ev.PubKey
		named = named || self
		if t[0] == "o" || !isActive(t[2:]) {
			continue
		}
		activeSelf = activeSelf || self
		if !self {
			add(&r.listed, t[1])
		}
		if t[0] == "M" {
			add(&r.leads, strings.ToLower(t[1]))
		}
	}
	r.active = !named || activeSelf
	if !hasRoles {
		for _, key := range all(ev, "maintainers") {
			if key != ev.PubKey {
				add(&r.listed, key)
			}
		}
	}
	return r
}

// isActive reads the boundaries of a role record: it is active without one, and with an odd number
// of them. One that cannot be read makes it void.
func isActive(boundaries []string) bool {
	for n, b := range boundaries {
		if n == len(boundaries)-1 && n%2 == 1 && b == "defer" {
			continue
		}
		if _, err := strconv.ParseUint(b, 10, 64); err != nil {
			return false
		}
	}
	return len(boundaries) == 0 || len(boundaries)%2 == 1
}

// possible is one possible end of what people announced for an identifier: which announcement of
// each author counts. Where timing decides there are several.
type possible map[string]*published

// maxPossible bounds how many possible ends are looked at.
const maxPossible = 256

// possibilities are all possible ends for an identifier. complete is false if there are too many.
func (m *model) possibilities(identifier string) (list []possible, complete bool) {
	byAuthor := map[string][]*published{} // newest first
	for _, ev := range m.of(30617, identifier) {
		byAuthor[ev.PubKey] = append(byAuthor[ev.PubKey], ev)
	}
	list = []possible{{}}
	for _, author := range slices.Sorted(maps.Keys(byAuthor)) {
		var may []*published
		certain := false
		for _, ev := range byAuthor[author] {
			if !ev.accepted {
				continue
			}
			f := m.fateOf(ev)
			if f != dead {
				may = append(may, ev)
			}
			if certain = f == alive; certain {
				break
			}
		}
		if !certain {
			may = append(may, nil)
		}
		var next []possible
		for _, before := range list {
			for _, ev := range may {
				one := maps.Clone(before)
				if ev != nil {
					one[author] = ev
				}
				next = append(next, one)
			}
		}
		if list = next; len(list) > maxPossible {
			return list[:maxPossible], false
		}
	}
	return list, true
}

// root is who leads the repository of an owner; empty: no one has authority.
func (p possible) root(owner string) string {
	followed := map[string]bool{}
	for at := owner; ; {
		a := p[at]
		if a == nil || followed[at] {
			return ""
		}
		switch r := rolesOf(a.Event); {
		case len(r.leads) == 0 && len(followed) == 0 && r.active:
			return owner
		case len(r.leads) != 1:
			return ""
		case r.leads[0] == at:
			return at
		default:
			followed[at] = true
			at = r.leads[0]
		}
	}
}

// confirmed are the confirmed maintainers of an owner's repository: the root, and every key that a
// confirmed key lists, is active in an announcement of its own, and lists a confirmed key there.
func (p possible) confirmed(owner string) map[string]bool {
	keys := map[string]bool{}
	root := p.root(owner)
	if root == "" {
		return keys
	}
	keys[root] = true
	for grew := true; grew; {
		grew = false
		for key := range maps.Clone(keys) {
			for _, invited := range rolesOf(p[key].Event).listed {
				a := p[invited]
				if keys[invited] || a == nil {
					continue
				}
				r := rolesOf(a.Event)
				if r.active && slices.ContainsFunc(r.listed, func(k string) bool { return keys[k] }) {
					keys[invited], grew = true, true
				}
			}
		}
	}
	return keys
}
