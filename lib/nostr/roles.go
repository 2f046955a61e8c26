package nostr

import (
	"slices"
	"strconv"
	"strings"
)

// Roles is what an announcement says about who maintains its repository. It is what the author
// says and no more: package authority works out who speaks for a repository.
type Roles struct {
	// Active: the author maintains the repository. An author whose own role has ended, or who is a
	// moderator only, has left, even where others list it.
	Active bool
	// Listed are the maintainers and leads whom the announcement names, each once, without the
	// author.
	Listed []string
	// Leads are the keys of active `M` tags, the author's own too, in lower case, each once.
	Leads []string
}

// Lists reports whether the announcement names a key as a maintainer.
func (r Roles) Lists(key string) bool { return slices.Contains(r.Listed, key) }

// isRoleTag reports whether a tag is a role record: of a lead (`M`), a maintainer (`m`) or a
// moderator (`o`). A void record is one too.
func isRoleTag(tag Tag) bool {
	return len(tag) > 0 && (tag[0] == "M" || tag[0] == "m" || tag[0] == "o")
}

// rolesOf reads the role tags of an announcement. Without any, the values of its `maintainers` tags
// are the keys that it lists. The clock plays no part.
func rolesOf(author string, tags Tags, maintainers []string) Roles {
	var listed, leads distinct[string]
	list := func(key string) {
		if IsHex64(key) && key != author {
			listed.add(key)
		}
	}
	hasRoles, namesAuthor, active := false, false, false
	for _, tag := range tags {
		if !isRoleTag(tag) {
			continue
		}
		hasRoles = true
		if len(tag) < 2 {
			continue
		}
		key := strings.ToLower(tag[1])
		namesAuthor = namesAuthor || key == author
		if tag[0] == "o" || !IsHex64(key) || !isActiveRecord(tag[2:]) {
			continue
		}
		active = active || key == author
		list(tag[1])
		if tag[0] == "M" {
			leads.add(key)
		}
	}
	if !hasRoles {
		for _, key := range maintainers {
			list(key)
		}
	}
	return Roles{Active: active || !namesAuthor, Listed: listed.items, Leads: leads.items}
}

// isActiveRecord reads the boundaries of a role record: start, end, start, end, …. A record without
// boundaries is active, and one that has begun and not ended. `defer` is an end at a time that is
// not known yet; only the last boundary can be one. A record with anything else is void.
func isActiveRecord(boundaries []string) bool {
	for i, boundary := range boundaries {
		if boundary == "defer" && i%2 == 1 && i == len(boundaries)-1 {
			continue
		}
		if _, err := strconv.ParseUint(boundary, 10, 64); err != nil {
			return false
		}
	}
	return len(boundaries) == 0 || len(boundaries)%2 == 1
}
