package repository

import (
	"maps"
	"slices"
	"strings"
)

// refPlan is how to come from the references that are to those that are wanted.
type refPlan struct {
	before   []refChange       // deletions that must come first
	changes  []refChange       // deletions and updates, one transaction
	symbolic map[string]string // symbolic references to set after it
}

// comes returns the objects that are to be named and that no reference names now.
func (p refPlan) comes(now Refs) (ids []string) {
	named := map[string]bool{"": true}
	for _, id := range now.ByName {
		named[id] = true
	}
	for _, c := range p.changes {
		if !named[c.to] {
			ids = append(ids, c.to)
		}
	}
	return unique(ids)
}

// planRefs compares branches and tags with what is wanted.
func planRefs(now Refs, want, symbolic map[string]string) refPlan {
	plan := refPlan{symbolic: map[string]string{}}
	for name, branch := range symbolic {
		if _, born := want[branch]; born && now.Symbolic[name] != branch {
			plan.symbolic[name] = branch
		}
	}
	var deletions []refChange
	stays := func(name string) bool {
		_, direct := want[name]
		branch, wanted := symbolic[name]
		_, born := want[branch]
		return direct || (wanted && born)
	}
	for _, name := range slices.Sorted(maps.Keys(now.ByName)) {
		if isBranchOrTag(name) && !stays(name) {
			deletions = append(deletions, refChange{name: name, from: now.ByName[name]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now.Symbolic)) {
		if isBranchOrTag(name) && !stays(name) {
			deletions = append(deletions, refChange{name: name})
		}
	}
	fresh := map[string]bool{} // names that were not there, and the folders that they need
	var updates []refChange
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if now.ByName[name] != want[name] {
			updates = append(updates, refChange{name: name, to: want[name], from: now.ByName[name]})
			addWithFolders(fresh, name)
		}
	}
	for name := range plan.symbolic {
		addWithFolders(fresh, name)
	}
	for _, d := range deletions {
		if fresh[d.name] || isFolderOfAny(d.name, fresh) {
			plan.before = append(plan.before, d)
		} else {
			plan.changes = append(plan.changes, d)
		}
	}
	plan.changes = append(plan.changes, updates...)
	return plan
}

func addWithFolders(names map[string]bool, name string) {
	for len(name) > len(tagsPrefix) {
		names[name] = true
		name = name[:strings.LastIndexByte(name, '/')]
	}
}

// isFolderOfAny reports whether a folder of name is itself one of the names.
func isFolderOfAny(name string, names map[string]bool) bool {
	for {
		end := strings.LastIndexByte(name, '/')
		if name = name[:end]; len(name) <= len(tagsPrefix) {
			return false
		}
		if names[name] {
			return true
		}
	}
}

func isBranchOrTag(name string) bool {
	return strings.HasPrefix(name, headsPrefix) || strings.HasPrefix(name, tagsPrefix)
}
