package repostate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// prefixNostr is where contributors push the tips of pull requests.
const prefixNostr = "refs/nostr/"

// Change is one reference that a push moves. New is empty where it is deleted.
type Change struct{ Name, New string }

// Push is what a push asks for.
type Push struct {
	Owner   string
	Refs    map[string]string // of the repository before the push, refs/heads and refs/tags
	Changes []Change
	// Commit says which commit a known event names, empty for one that names none; ok is false for
	// one that is not known.
	Commit func(eventID string) (commit string, ok bool, err error)
}

// Refused is why a push is not allowed, in words for the user's terminal.
type Refused struct{ Reason string }

// Error is the reason.
func (r *Refused) Error() string { return r.Reason }

func refused(format string, args ...any) error {
	return &Refused{"authorisation failed: " + fmt.Sprintf(format, args...)}
}

// Authorise decides a push. It gives the state that allows its branches and tags, nil if it has
// none. Nothing can be pushed to an archive that is read-only.
func (v View) Authorise(p Push) (*State, error) {
	if v.IsArchived(p.Owner) && v.rules.ReadOnly() {
		return nil, refused("this repository is a read-only archive: its announcement does not list this server; push to a server that it lists")
	}
	after := maps.Clone(p.Refs)
	if after == nil {
		after = map[string]string{}
	}
	aligns := false
	for _, c := range p.Changes {
		switch {
		case strings.HasPrefix(c.Name, "refs/heads/"), strings.HasPrefix(c.Name, "refs/tags/"):
			aligns = true
			if c.New == "" {
				delete(after, c.Name)
			} else {
				after[c.Name] = c.New
			}
		case strings.HasPrefix(c.Name, prefixNostr):
			if err := p.checkNostr(c); err != nil {
				return nil, err
			}
		default:
			return nil, refused("%s cannot be pushed: only refs/heads/, refs/tags/ and refs/nostr/<event-id> can", c.Name)
		}
	}
	if !aligns {
		return nil, nil
	}
	return v.stateEqual(p.Owner, after)
}

func (p Push) checkNostr(c Change) error {
	id := strings.TrimPrefix(c.Name, prefixNostr)
	if !nostr.IsHex64(id) {
		return refused("%s is not named for an event id of 64 hex digits", c.Name)
	}
	if c.New == "" {
		return refused("%s cannot be deleted", c.Name)
	}
	commit, known, err := p.Commit(id)
	if err != nil {
		return err
	}
	switch {
	case !known || commit == c.New:
		return nil
	case commit == "":
		return refused("event %s is no pull request and names no commit", id)
	}
	return refused("event %s names commit %s, not %s", id, commit, c.New)
}

// stateEqual finds the state that allows references: by the owner or a maintainer, not older than
// the one that counts now, naming exactly them.
func (v View) stateEqual(owner string, after map[string]string) (*State, error) {
	var newest *State // of those that authorised people have signed
	for _, s := range v.StatesFor(owner) {
		if newest == nil {
			newest = &s
		}
		if maps.Equal(s.Refs, after) {
			return &s, nil
		}
		if !s.Held {
			break // older ones count no more
		}
	}
	switch {
	case newest != nil && isPart(after, newest.Refs):
		return nil, refused("the newest state event (%.8s…) names %s too; push everything that it names in one push: git push <remote> 'refs/heads/*' 'refs/tags/*'",
			newest.Event.ID, Difference(newest.Refs, after))
	case newest != nil:
		return nil, refused("no state event names exactly these references; the newest (%.8s…) differs in %s; publish a new one (kind 30618) first", newest.Event.ID, Difference(newest.Refs, after))
	case len(v.States) > 0:
		return nil, refused("no state event of the owner or a maintainer of this repository; those that are known are by others")
	}
	return nil, refused("no state event for this repository; publish one (kind 30618) first")
}

// isPart reports whether references are all among the wanted ones.
func isPart(some, wanted map[string]string) bool {
	for name, id := range some {
		if wanted[name] != id {
			return false
		}
	}
	return true
}

// Difference names a few references in which two sets differ, for people; "": they are the same.
func Difference(want, got map[string]string) string {
	var names []string
	for name, id := range want {
		if got[name] != id {
			names = append(names, name)
		}
	}
	for name := range got {
		if _, wanted := want[name]; !wanted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
