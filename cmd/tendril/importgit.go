package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tendril.dev/cmd/tendril/check"
	"tendril.dev/cmd/tendril/gittree"
	"tendril.dev/cmd/tendril/importer"
	"tendril.dev/lib/nostr"
)

// pushed is what came of pushing repositories. The lists name them as logs do.
type pushed struct {
	Repositories int `json:"repositories"` // whose branches and tags are at the server
	Empty        int `json:"empty"`        // without branches and tags
	Pulls        int `json:"pulls"`        // commits of pull requests that are at the server
	Contributors int `json:"contributors"` // repositories of contributors whose commits are at the server

	NotHosted  []string `json:"not_hosted,omitempty"` // the server does not have them: no announcement was accepted
	Incomplete []string `json:"incomplete,omitempty"` // "<name>: which objects the folder lacks"
	Failed     []string `json:"failed,omitempty"`     // "<name>: why"
}

// pushesAtOnce is how many repositories are pushed at the same time: the server works on one while
// git packs the next.
const pushesAtOnce = 4

// gitImport pushes the repositories of a folder as their owners would, so that every check of a
// push holds.
type gitImport struct {
	folder *gittree.Folder
	server string // http(s) URL of the front door
	shown  *progress

	owners []gittree.Repo
	prs    map[nostr.RepoRef]gittree.Repo // by contributor and identifier
	passed []gittree.Passed

	mu    sync.Mutex
	taken map[string]int   // by step and repository, how many references; once taken it is not pushed again
	fails map[string]error // by step and repository
}

// The steps of an import, which begin the keys of what they have done.
const (
	stepBranches     = "branches "
	stepPulls        = "pulls "
	stepContributors = "contributors "
)

func newGitImport(dir, server string, shown *progress) (*gitImport, error) {
	folder, err := gittree.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	g := &gitImport{
		folder: folder, server: server, shown: shown,
		prs: map[nostr.RepoRef]gittree.Repo{}, taken: map[string]int{}, fails: map[string]error{},
	}
	all, passed, err := folder.List()
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	g.passed = passed
	for _, r := range all {
		if r.PRs {
			g.prs[refOf(r)] = r
		} else {
			g.owners = append(g.owners, r)
		}
	}
	return g, nil
}

// refOf is the repository that a folder is; of a contributor's, with the contributor's key.
func refOf(r gittree.Repo) nostr.RepoRef {
	return nostr.RepoRef{PubKey: r.PubKey, Identifier: r.Identifier}
}

// push pushes branches and tags, or with pulls the commits of these pull requests. What was taken
// once is not pushed again.
func (g *gitImport) push(ctx context.Context, pulls map[string]importer.Pull) (more bool, err error) {
	if pulls == nil {
		return g.each(ctx, stepBranches, g.owners, func(ctx context.Context, r gittree.Repo) (int, error) {
			return g.withView(r, nil, func(v *gittree.View) (int, error) {
				n, err := v.Push(ctx, r.On(g.server).At)
				return n, explained(ctx, v, v.BranchesAndTags(), err)
			})
		})
	}
	of := pullsByRepository(pulls)
	more, err = g.each(ctx, stepPulls, g.owners, func(ctx context.Context, r gittree.Repo) (int, error) {
		return g.pushPulls(ctx, r, of[refOf(r)])
	})
	if err != nil {
		return false, err
	}
	contributors := slices.SortedFunc(maps.Values(g.prs), func(a, b gittree.Repo) int {
		return cmp.Compare(a.Name, b.Name)
	})
	also, err := g.each(ctx, stepContributors, contributors, func(ctx context.Context, r gittree.Repo) (int, error) {
		return g.withView(r, nil, func(v *gittree.View) (int, error) {
			own := v.Pulls()
			maps.DeleteFunc(own, func(id, commit string) bool {
				return pulls[id].Author != r.PubKey || pulls[id].Commit != commit
			})
			return v.PushPulls(ctx, r.On(g.server).At, own)
		})
	})
	return more || also, err
}

// pullsByRepository are the commits of pull requests by the repositories that they are for. An
// update that names none is for those of its pull request.
func pullsByRepository(pulls map[string]importer.Pull) map[nostr.RepoRef]map[string]importer.Pull {
	of := map[nostr.RepoRef]map[string]importer.Pull{}
	for id, pull := range pulls {
		repos := pull.Repos
		if len(repos) == 0 {
			repos = pulls[pull.Root].Repos
		}
		for _, ref := range repos {
			if of[ref] == nil {
				of[ref] = map[string]importer.Pull{}
			}
			of[ref][id] = pull
		}
	}
	return of
}

// pushPulls pushes the commits of pull requests that are in the folder: in the repository, among
// what its family has, or in that of the contributor. Where the server does not take all of them
// together, each is pushed alone, so that one that is refused does not keep the others out.
func (g *gitImport) pushPulls(ctx context.Context, r gittree.Repo, pulls map[string]importer.Pull) (int, error) {
	var others []gittree.Repo
	commits := map[string]string{}
	for id, pull := range pulls {
		commits[id] = pull.Commit
		theirs, is := g.prs[nostr.RepoRef{PubKey: pull.Author, Identifier: r.Identifier}]
		if is && !slices.Contains(others, theirs) {
			others = append(others, theirs)
		}
	}
	if len(commits) == 0 {
		return 0, nil
	}
	return g.withView(r, others, func(v *gittree.View) (int, error) {
		lacking, err := v.Lacks(ctx, slices.Compact(slices.Sorted(maps.Values(commits))))
		if err != nil {
			return 0, err
		}
		maps.DeleteFunc(commits, func(_, commit string) bool { return slices.Contains(lacking, commit) })
		url := r.On(g.server).At
		count, err := v.PushPulls(ctx, url, commits)
		if err == nil || len(commits) == 1 || ctx.Err() != nil || gittree.NotFound(err) {
			return count, err
		}
		count, err = 0, nil
		for _, id := range slices.Sorted(maps.Keys(commits)) {
			n, failed := v.PushPulls(ctx, url, map[string]string{id: commits[id]})
			if failed == nil {
				count += n
			}
			err = cmp.Or(err, failed)
		}
		return count, err
	})
}

func (g *gitImport) withView(r gittree.Repo, others []gittree.Repo, do func(*gittree.View) (int, error)) (int, error) {
	v, err := g.folder.View(r, others...)
	if err != nil {
		return 0, err
	}
	defer v.Close()
	return do(v)
}

// errIncomplete is why a repository could not be pushed that the folder does not have all of.
type errIncomplete struct{ missing string }

func (e *errIncomplete) Error() string { return "the folder lacks " + e.missing }

// explained says of a push that failed whether the folder lacks something.
func explained(ctx context.Context, v *gittree.View, refs map[string]string, err error) error {
	if err == nil || ctx.Err() != nil || gittree.NotFound(err) {
		return err
	}
	if missing, failed := v.Missing(ctx, refs); failed == nil && len(missing) > 0 {
		return &errIncomplete{fmt.Sprintf("objects that its references need, such as %s", missing[0])}
	}
	return err
}

// each pushes each of the repositories of which the step has not been taken. It reports whether
// another round may bring more: something was taken, which others may have waited for.
func (g *gitImport) each(ctx context.Context, step string, repos []gittree.Repo,
	push func(context.Context, gittree.Repo) (int, error)) (more bool, err error) {
	var group errgroup.Group
	group.SetLimit(pushesAtOnce)
	var done, taken, failed atomic.Int64
	for _, r := range repos {
		key := step + r.Name
		g.mu.Lock()
		_, before := g.taken[key]
		g.mu.Unlock()
		if done.Add(1); before || ctx.Err() != nil {
			continue
		}
		g.shown.at("repositories", int(done.Load()), len(repos))
		group.Go(func() error {
			n, err := push(ctx, r)
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.fails[key] = err; err != nil {
				failed.Add(1)
				return nil
			}
			delete(g.fails, key)
			g.taken[key] = n
			taken.Add(1)
			return nil
		})
	}
	_ = group.Wait() // why one could not be pushed is told with it
	return taken.Load() > 0 && failed.Load() > 0, ctx.Err()
}

// result is what came of all pushes.
func (g *gitImport) result() *pushed {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := new(pushed)
	for _, r := range g.owners {
		n, taken := g.taken[stepBranches+r.Name]
		switch {
		case taken && n > 0:
			p.Repositories++
		case taken:
			p.Empty++
		}
		p.Pulls += g.taken[stepPulls+r.Name]
		err := g.fails[stepBranches+r.Name]
		_, lacks := errors.AsType[*errIncomplete](err)
		name := refOf(r).Name()
		switch {
		case gittree.NotFound(err):
			p.NotHosted = append(p.NotHosted, name)
			continue
		case lacks:
			p.Incomplete = append(p.Incomplete, fmt.Sprintf("%s: %v", name, err))
		case err != nil:
			p.Failed = append(p.Failed, fmt.Sprintf("%s: %v", name, err))
		}
		if err := g.fails[stepPulls+r.Name]; err != nil && !gittree.NotFound(err) {
			p.Failed = append(p.Failed, fmt.Sprintf("%s, pull requests: %v", name, err))
		}
	}
	for ref, r := range g.prs {
		if g.taken[stepContributors+r.Name] > 0 {
			p.Contributors++
		}
		if err := g.fails[stepContributors+r.Name]; err != nil && !gittree.NotFound(err) { // GRASP-06 is off
			p.Failed = append(p.Failed, fmt.Sprintf("prs/%s: %v", ref.Name(), err))
		}
	}
	slices.Sort(p.Failed)
	return p
}

// filters ask a relay for what belongs to the repositories of the folder: announcements and states
// of their owners, and the pull requests whose commits are there. All else is synced from the
// relays that these announcements list.
func (g *gitImport) filters() (filters []nostr.Filter, err error) {
	owners, ids := map[string]bool{}, map[string]bool{}
	for _, r := range slices.AppendSeq(slices.Clone(g.owners), maps.Values(g.prs)) {
		if !r.PRs {
			owners[r.PubKey] = true
		}
		refs, err := g.folder.References(r)
		if err != nil {
			return nil, fmt.Errorf("read the references of %s: %w", refOf(r).Name(), err)
		}
		for id := range (&gittree.View{Refs: refs}).Pulls() {
			ids[id] = nostr.IsHex64(id)
		}
	}
	maps.DeleteFunc(ids, func(_ string, is bool) bool { return !is })
	const perFilter = 500 // values
	for authors := range slices.Chunk(slices.Sorted(maps.Keys(owners)), perFilter) {
		filters = append(filters, nostr.Filter{Kinds: []int{nostr.KindAnnouncement, nostr.KindState}, Authors: authors})
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(ids)), perFilter) {
		filters = append(filters, nostr.Filter{IDs: some})
	}
	if len(filters) == 0 {
		return nil, errors.New("the folder has no repositories")
	}
	return filters, nil
}

// survey is what an import would find: the report of --dry-run.
type survey struct {
	Events        int         `json:"events"`
	Invalid       int         `json:"invalid"` // lines that are no events, or are not signed
	Kinds         map[int]int `json:"kinds"`
	Announced     int         `json:"announced"`               // repositories
	Elsewhere     []string    `json:"elsewhere,omitempty"`     // whose announcement does not list this service
	Repositories  int         `json:"repositories"`            // of owners, in the folder
	Sharing       int         `json:"sharing"`                 // of these, those that share the objects of a family
	Contributors  int         `json:"contributors"`            // repositories of contributors
	References    int         `json:"references"`              // branches and tags
	Pulls         int         `json:"pulls"`                   // commits of pull requests of the input
	UnknownPulls  int         `json:"unknown_pulls"`           // commits whose pull requests are not in the input
	NotAnnounced  []string    `json:"not_announced,omitempty"` // in the folder, and not in the input
	NotInFolder   []string    `json:"not_in_folder,omitempty"` // announced for this service, and not in the folder
	LackingBranch []string    `json:"lacking,omitempty"`       // "<name>: which objects the folder lacks"
	Unreadable    []string    `json:"unreadable,omitempty"`    // "<name>: why"

	Passed []gittree.Passed `json:"passed_over,omitempty"`
}

// survey reads everything and changes nothing.
func (g *gitImport) survey(ctx context.Context, m *importer.Import, domain string) (*survey, error) {
	counts, kinds := m.Count()
	s := &survey{Events: counts.Lines - counts.Invalid, Invalid: counts.Invalid, Kinds: kinds, Announced: len(m.Announced)}
	here := map[nostr.RepoRef]bool{}
	if g != nil {
		s.Passed, s.Contributors, s.Repositories = g.passed, len(g.prs), len(g.owners)
		all := slices.AppendSeq(slices.Clone(g.owners), maps.Values(g.prs))
		for n, r := range all {
			g.shown.at("repositories", n, len(all))
			if !r.PRs {
				here[refOf(r)] = true
			}
			g.look(ctx, r, m, s)
			if ctx.Err() != nil {
				return nil, errInterrupted
			}
		}
	}
	for ref, a := range m.Announced {
		switch {
		case domain != "" && !a.ListsService(domain):
			s.Elsewhere = append(s.Elsewhere, ref.Name())
		case g != nil && !here[ref]:
			s.NotInFolder = append(s.NotInFolder, ref.Name())
		}
	}
	for _, list := range [][]string{s.Elsewhere, s.NotAnnounced, s.NotInFolder, s.LackingBranch, s.Unreadable} {
		slices.Sort(list)
	}
	return s, nil
}

// look adds a repository to a survey.
func (g *gitImport) look(ctx context.Context, r gittree.Repo, m *importer.Import, s *survey) {
	name := refOf(r).Name()
	if r.PRs {
		name = "prs/" + name
	} else if m.Announced[refOf(r)] == nil {
		s.NotAnnounced = append(s.NotAnnounced, name)
	}
	if r.Shares() {
		s.Sharing++
	}
	_, err := g.withView(r, nil, func(v *gittree.View) (int, error) {
		wanted := v.BranchesAndTags()
		s.References += len(wanted)
		for id, commit := range v.Pulls() {
			if _, known := m.Pulls[id]; !known {
				s.UnknownPulls++
				continue
			}
			s.Pulls++
			wanted[id] = commit
		}
		missing, err := v.Missing(ctx, wanted)
		if len(missing) > 0 {
			s.LackingBranch = append(s.LackingBranch, fmt.Sprintf("%s: %s", name, missing[0]))
		}
		return 0, err
	})
	if err != nil {
		s.Unreadable = append(s.Unreadable, fmt.Sprintf("%s: %v", name, err))
	}
}

// mostNamed is how many of a kind are named to people; --json has all.
const mostNamed = 20

// tally is a report for people, a line each: a number, and what there are so many of.
type tally struct{ io.Writer }

func (t tally) count(n int, what string) { fmt.Fprintf(t, "%9d  %s\n", n, what) }

// countAny leaves out what there is none of.
func (t tally) countAny(n int, what string) {
	if n > 0 {
		t.count(n, what)
	}
}

// list counts what is in a list, and names it below.
func (t tally) list(what string, list []string) {
	t.countAny(len(list), what+":")
	for _, line := range list[:min(len(list), mostNamed)] {
		fmt.Fprintf(t, "           %s\n", printable(line))
	}
	if more := len(list) - mostNamed; more > 0 {
		fmt.Fprintf(t, "           and %d more, which --json lists\n", more)
	}
}

// write writes the report for people.
func (s *survey) write(t tally, domain string) {
	t.count(s.Events, "events")
	t.countAny(s.Invalid, "lines with an invalid id or signature, or that are no events")
	t.count(s.Announced, "of these announce repositories")
	t.count(s.Repositories, fmt.Sprintf("repositories in the folder, and %d of contributors; %d share objects with others",
		s.Contributors, s.Sharing))
	t.count(s.References, "branches and tags")
	t.count(s.Pulls, "commits of pull requests")
	t.countAny(s.UnknownPulls, "commits of pull requests whose events are not in the input: they stay behind")
	t.list("announced, and the announcement does not list "+domain, s.Elsewhere)
	t.list("in the folder, and not announced in the input: they stay behind", s.NotAnnounced)
	t.list("announced, and not in the folder: their git data will be hunted at their clone URLs", s.NotInFolder)
	t.list("lack objects in the folder: these will be hunted", s.LackingBranch)
	t.list("cannot be read", s.Unreadable)
	var passed []string
	for _, p := range s.Passed {
		passed = append(passed, p.Path+": "+p.Why)
	}
	t.list("passed over in the folder", passed)
	fmt.Fprintln(t, "nothing was changed")
}

// failure is why an import is not whole.
func (p *pushed) failure() error {
	if len(p.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("%s could not be pushed", check.Count(len(p.Failed), "repository", "repositories"))
}
