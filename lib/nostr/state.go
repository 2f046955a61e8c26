package nostr

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const headsPrefix, tagsPrefix, peeledSuffix, symbolicPrefix = "refs/heads/", "refs/tags/", "^{}", "ref: "

// State is a repository state (NIP-34, kind 30618): what the branches and tags of a repository are.
type State struct {
	Event      *Event
	Identifier string

	// Refs maps refs/heads/* and refs/tags/* to the object that each names (40 or 64 hex digits).
	// Symbolic references and the peeled entries of annotated tags (`…^{}`) are not among them.
	Refs map[string]string

	// Symbolic maps references whose value is `ref: refs/heads/…` to the branch that they follow
	// (its full name).
	Symbolic map[string]string

	// Head is the branch that HEAD follows (its full name), or "" where the state does not say.
	Head string

	// Impossible are the names, in order, whose values are neither object ids nor branches to
	// follow. No repository can ever have what they name, so the state can never be satisfied; see
	// Satisfiable. They are in none of the maps above.
	Impossible []string
}

// Satisfiable reports whether a repository can ever have what the state names. A state that is not
// satisfiable is held like any other, but it is not hunted for, allows no push, and expires.
func (s *State) Satisfiable() bool { return len(s.Impossible) == 0 }

// ParseState reads a state. Names under refs/heads/ and refs/tags/ must be legal and able to stand
// side by side in one repository, and no name may have two values. Values are object ids or
// `ref: refs/heads/…`, that of HEAD also a bare `refs/heads/…`; every other value makes the state
// impossible to satisfy, but not invalid. Tags of other names are ignored, and so are the ancestors
// that may follow a value.
func ParseState(ev *Event) (*State, error) {
	if ev.Kind != KindState {
		return nil, fmt.Errorf("kind %d is not a repository state", ev.Kind)
	}
	if !IsHex64(ev.PubKey) {
		return nil, errors.New("the author is not a public key of 64 lower-case hex digits")
	}
	s := &State{Event: ev, Identifier: ev.Tags.GetD(), Refs: map[string]string{}, Symbolic: map[string]string{}}
	if err := CheckIdentifier(s.Identifier); err != nil {
		return nil, err
	}
	seen := make(map[string]string)
	for _, tag := range ev.Tags {
		if len(tag) == 0 || !isStateName(tag[0]) {
			continue
		}
		name, value := tag[0], ""
		if len(tag) > 1 {
			value = tag[1]
		}
		if had, again := seen[name]; again {
			if had != value {
				return nil, fmt.Errorf("%q has two values", name)
			}
			continue
		}
		if len(seen) == MaxRefs {
			return nil, fmt.Errorf("the state names more than %d references", MaxRefs)
		}
		seen[name] = value
		if err := s.set(name, value); err != nil {
			return nil, err
		}
	}
	if err := s.checkSideBySide(); err != nil {
		return nil, err
	}
	return s, nil
}

func isStateName(name string) bool {
	return name == "HEAD" || strings.HasPrefix(name, headsPrefix) || strings.HasPrefix(name, tagsPrefix)
}

// set takes one entry of the event into the state, or says what is wrong with it.
func (s *State) set(name, value string) error {
	bare, peeled := name, false
	if strings.HasPrefix(name, tagsPrefix) {
		bare, peeled = strings.CutSuffix(name, peeledSuffix)
	}
	if name != "HEAD" {
		if err := CheckRefName(bare); err != nil {
			return err
		}
	}
	if id := strings.ToLower(value); IsObjectID(id) {
		// A HEAD that names a commit follows no branch, and a peeled entry only repeats what its
		// tag's object says.
		if name != "HEAD" && !peeled {
			s.Refs[name] = id
		}
		return nil
	}
	branch, symbolic := strings.CutPrefix(value, symbolicPrefix)
	branch = strings.TrimSpace(branch)
	isBranch := strings.HasPrefix(branch, headsPrefix) && CheckRefName(branch) == nil
	switch {
	case name == "HEAD" && isBranch:
		s.Head = branch // also without "ref: ", as clients in use write it
	case symbolic && isBranch && !peeled:
		s.Symbolic[name] = branch
	default:
		s.Impossible = append(s.Impossible, name)
	}
	return nil
}

// checkSideBySide refuses a state that no repository can have: a reference is a file to git, so
// none can be the folder of another. With the slash before all other characters, what is in a folder
// comes right behind it.
func (s *State) checkSideBySide() error {
	const slash = "\x00"
	var names []string
	for _, some := range []map[string]string{s.Refs, s.Symbolic} {
		for name := range some {
			names = append(names, strings.ReplaceAll(name, "/", slash))
		}
	}
	slices.Sort(names)
	for i, folder := range names[:max(0, len(names)-1)] {
		if name := names[i+1]; strings.HasPrefix(name, folder+slash) {
			return fmt.Errorf("%q and %q cannot stand in one repository", strings.ReplaceAll(folder, slash, "/"),
				strings.ReplaceAll(name, slash, "/"))
		}
	}
	return nil
}

// IsSHA256 reports whether the state names an object by the id of git's SHA-256 object format.
func (s *State) IsSHA256() bool {
	for _, id := range s.Refs {
		if len(id) == 64 {
			return true
		}
	}
	return false
}

// Objects are the objects that must be there before the state can be served, each once, in order of
// their ids.
func (s *State) Objects() []string { return slices.Compact(slices.Sorted(maps.Values(s.Refs))) }

// BranchesAndTags returns those of some references that a state event speaks of: what is below
// refs/heads/ and refs/tags/, by full name.
func BranchesAndTags(refs map[string]string) map[string]string {
	out := maps.Clone(refs)
	maps.DeleteFunc(out, func(name, _ string) bool { return name == "HEAD" || !isStateName(name) })
	return out
}
