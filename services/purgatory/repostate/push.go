package repostate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/nostr"
)

// PrefixNostr is where contributors push the tips of pull requests.
const PrefixNostr = "refs/nostr/"

// Change is one reference that a push moves. Old is empty where it is created, New where it is
// deleted.
type Change struct{ Name, Old, New string }

// Push is what a push asks for.
type Push struct {
	Owner   string
	Refs    map[string]string // of the repository before the push
	Changes []Change
	// Event returns an event that is known, or nil.
	Event func(id string) (*nostr.Event, error)
	// Repos returns what a pull request or update is for; of an update also what its pull request is
	// for. Optional: without it what the event names itself.
	Repos func(*nostr.PullRequest) ([]nostr.RepoRef, error)
}

// Decision is what may become of each change of a push.
type Decision struct {
	Allowed []Change
	// Done are the changes whose target is there already: the data was found before the push came.
	// They need no state event, and succeed whether or not the client knows what was there before.
	Done []Change
	// Refused maps the other references to reasons, in words for the user's terminal.
	Refused map[string]string
	// State allows the branches and tags. Of a push that is done it is the state that they follow, or
	// nil.
	State *State
}

// Err is the error of a push of which nothing is done, or that asked for all or nothing; nil: some
// of it is.
func (d Decision) Err(atomic bool) error {
	if len(d.Refused) == 0 || !atomic && len(d.Allowed)+len(d.Done) > 0 {
		return nil
	}
	return &Refused{Reasons(d.Refused)}
}

// Reasons are why references are refused: a few, each once, in the order of the names.
func Reasons(refused map[string]string) string {
	const most = 8
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if reason := refused[name]; !slices.Contains(reasons, reason) && len(reasons) < most {
			reasons = append(reasons, reason)
		}
	}
	return strings.Join(reasons, "\n")
}

// Refused is why a push is not allowed, in words for the user's terminal.
type Refused struct{ Reason string }

// Error is the reason.
func (r *Refused) Error() string { return r.Reason }

func refused(format string, args ...any) error {
	return &Refused{"authorisation failed: " + fmt.Sprintf(format, args...)}
}

// Authorise decides a push: branches and tags together, every other reference for itself. The error
// is a *Refused for a repository to which nothing can be pushed, like an archive that is read-only.
func (v View) Authorise(p Push) (d Decision, err error) {
	if !v.Hosts(p.Owner) {
		return d, refused("the repository is not hosted here any more")
	}
	if v.IsArchived(p.Owner) && v.rules.ReadOnly() {
		return d, refused("this repository is a read-only archive: its announcement does not list this server; push to a server that it lists")
	}
	d, aligning, err := p.decide(func(ev *nostr.Event, commit string) error {
		return v.CheckTip(ev, commit, p.Owner,
			p.Repos)
	})
	if err != nil {
		return d, err
	}
	after := map[string]string{}
	maps.Copy(after, nostr.BranchesAndTags(p.Refs))
	for _, c := range aligning {
		if after[c.Name] = c.New; c.New == "" {
			delete(after, c.Name)
		}
	}
	done := func(c Change) bool { return IsBranchOrTag(c.Name) }
	if len(aligning) == 0 && !slices.ContainsFunc(d.Done, done) {
		return d, nil
	}
	d.State, err = v.stateEqual(p.Owner, after)
	unauthorised, _ := errors.AsType[*Refused](err)
	for _, c := range aligning {
		if unauthorised != nil {
			d.Refused[c.Name] = unauthorised.Reason
		} else {
			d.Allowed = append(d.Allowed, c)
		}
	}
	return d, nil
}

// AuthoriseContributions decides a push to a contributor's repository (GRASP-06): only commits of
// the contributor's own pull requests can be named there.
func (v View) AuthoriseContributions(p Push) (Decision, error) {
	at := nostr.RepoRef{PubKey: p.Owner, Identifier: v.Identifier}
	d, aligning, err := p.decide(func(ev *nostr.Event, commit string) error {
		return CheckContribution(ev, at, commit,
			v.Domain)
	})
	for _, c := range aligning {
		d.Refused[c.Name] = refused("%s cannot be pushed here: only refs/nostr/<event-id> can, the commit of a pull request",
			c.Name).Error()
	}
	return d, err
}

// decide decides what needs no state. aligning are the branches and tags that are not done already.
func (p Push) decide(check func(ev *nostr.Event, commit string) error) (d Decision, aligning []Change, err error) {
	d.Refused = map[string]string{}
	for _, c := range p.Changes {
		switch {
		case !IsBranchOrTag(c.Name) && !strings.HasPrefix(c.Name, PrefixNostr):
			d.Refused[c.Name] = refused("%s cannot be pushed: only refs/heads/, refs/tags/ and refs/nostr/<event-id> can",
				c.Name).Error()
		case p.Refs[c.Name] == c.New:
			d.Done = append(d.Done, c)
		case IsBranchOrTag(c.Name):
			aligning = append(aligning, c)
		default:
			not, err := p.checkNostr(c, check)
			if err != nil {
				return d, nil, err
			}
			if not != nil {
				d.Refused[c.Name] = not.Error()
			} else {
				d.Allowed = append(d.Allowed, c)
			}
		}
	}
	return d, aligning, nil
}

// IsBranchOrTag reports whether a reference is one that a state event may name.
func IsBranchOrTag(name string) bool {
	return strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/")
}

// checkNostr says why a reference below refs/nostr/ cannot be pushed. err: it cannot be told.
func (p Push) checkNostr(c Change, check func(ev *nostr.Event, commit string) error) (not, err error) {
	id := strings.TrimPrefix(c.Name, PrefixNostr)
	switch {
	case !nostr.IsHex64(id):
		return refused("%s is not named for an event id of 64 hex digits", c.Name), nil
	case c.New == "":
		return refused("%s cannot be deleted by a push; delete its event", c.Name), nil
	}
	ev, err := p.Event(id)
	if err != nil || ev == nil {
		return nil, err
	}
	not = check(ev, c.New)
	if _, is := errors.AsType[*Refused](not); !is {
		return nil, not
	}
	return not, nil
}

// CheckTip says why a commit cannot be named for an event in an owner's repository, as a *Refused:
// the event must be a pull request or an update that names this commit, and be for this repository.
// There it would never be released. repos is Push.Repos.
func (v View) CheckTip(ev *nostr.Event, commit, owner string,
	repos func(*nostr.PullRequest) ([]nostr.RepoRef, error)) error {
	parsed, err := parse(ev, commit)
	if err != nil {
		return err
	}
	if repos != nil {
		parsed.Repos, err = repos(parsed)
	}
	if err != nil {
		return fmt.Errorf("read what event %s is for: %w", ev.ID, err)
	}
	pr := PullRequest{PullRequest: parsed}
	if slices.Contains(v.Tagged(pr), owner) {
		return nil
	}
	const most = 3
	var names []string
	for _, ref := range pr.Repos[:min(len(pr.Repos), most)] {
		names = append(names, nostr.Npub(ref.PubKey)+"/"+strings.ToValidUTF8(ref.Identifier, "?"))
	}
	if more := len(pr.Repos) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return refused("event %s is not for this repository; its a tags name %s", ev.ID, strings.Join(names, ", "))
}

func parse(ev *nostr.Event, commit string) (*nostr.PullRequest, error) {
	pr, err := nostr.ParsePullRequest(ev)
	switch {
	case err != nil:
		return nil, refused("event %s is no pull request and names no commit", ev.ID)
	case pr.Commit != commit:
		return nil, refused("event %s names commit %s, not %s", ev.ID, pr.Commit, commit)
	}
	return pr, nil
}

// stateEqual finds the state that allows references: by a confirmed maintainer, not older than the
// newest accepted one, naming exactly them.
func (v View) stateEqual(owner string, after map[string]string) (*State, error) {
	var newest *State // of those by confirmed maintainers
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
	if g := v.Group(owner); g.Root == "" {
		return nil, refused("%s; %s", g.NoAuthority, g.NoAuthority.Advice())
	}
	if other := v.byOthers(owner, after); other != nil {
		reason, advice := authority.Why(v, owner, other.Event.PubKey)
		return nil, refused("no state event of a confirmed maintainer of this repository names these references; those that are known are by others: %s; %s",
			reason, advice)
	}
	switch {
	case newest != nil && isPart(after, newest.Refs):
		return nil, refused("the newest state event (%.8s…) names %s too; push everything that it names in one push: git push <url> 'refs/heads/*' 'refs/tags/*'",
			newest.Event.ID, Difference(newest.Refs, after))
	case newest != nil:
		return nil, refused("no state event names exactly these references; the newest (%.8s…) differs in %s; publish a new one (kind 30618) first%s",
			newest.Event.ID, Difference(newest.Refs, after), v.invited(owner))
	}
	return nil, refused("no state event for this repository; publish one (kind 30618) first%s", v.invited(owner))
}

// byOthers finds a state of a key that is no confirmed maintainer: the one that names exactly these
// references, or the newest where no confirmed maintainer has any; nil: there is none.
func (v View) byOthers(owner string, after map[string]string) *State {
	group, some := v.Group(owner), len(v.StatesFor(owner)) > 0
	var newest *State
	for _, s := range v.States {
		if group.Has(s.Event.PubKey) {
			continue
		}
		if maps.Equal(s.Refs, after) {
			return &s
		}
		if newest == nil && !some {
			newest = &s
		}
	}
	return newest
}

// invited says whose states do not count yet, for people.
func (v View) invited(owner string) string {
	keys := v.Group(owner).Invited
	if len(keys) == 0 {
		return ""
	}
	_, advice := authority.Why(v, owner, keys[0])
	return fmt.Sprintf("; %s is invited but has not accepted yet: %s", nostr.Npub(keys[0]), advice)
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

// CheckContribution says why a commit does not belong into a contributor's repository under the
// name of an event, as a *Refused: the event must be a pull request or an update of one that the
// contributor has signed, that names the identifier in `a`, this address in `clone` and the commit
// in `c` (GRASP-06).
func CheckContribution(ev *nostr.Event, at nostr.RepoRef, commit, domain string) error {
	pr, err := parse(ev, commit)
	switch {
	case err != nil:
		return err
	case pr.Event.PubKey != at.PubKey:
		return refused("event %s is not signed by %s", ev.ID, nostr.Npub(at.PubKey))
	case !slices.ContainsFunc(pr.Repos, func(ref nostr.RepoRef) bool { return ref.Identifier == at.Identifier }):
		return refused("event %s names no repository with the identifier %q in an a tag", ev.ID, at.Identifier)
	case !slices.Contains(pr.PRServiceIdentifiers(domain), at.Identifier):
		return refused("event %s does not name %s%s in its clone tag", ev.ID, domain,
			nostr.PRsURLPath(nostr.Npub(at.PubKey), at.Identifier))
	}
	return nil
}
