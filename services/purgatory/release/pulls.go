package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// PrefixNostr begins the names under which the commits of pull requests are named.
const PrefixNostr = "refs/nostr/"

// alignPullRequests names the commits of pull requests and updates that are there, in every
// repository that they are for and that may be changed, and returns those of the held ones that are
// named everywhere.
func (p *pass) alignPullRequests(ctx context.Context, owners []string) (ready []*nostr.Event) {
	for _, pr := range p.v.PullRequests {
		tagged := p.v.Tagged(pr)
		offered := p.offered[pr.Event.ID]
		if pr.Held && !offered && !slices.ContainsFunc(tagged, func(owner string) bool { return slices.Contains(owners, owner) }) {
			continue
		}
		// A commit that is not there yet is not named anywhere: nothing else need be looked at.
		everywhere := len(tagged) > 0
		for _, owner := range tagged {
			named, err := p.nameCommit(ctx, owner, pr, slices.Contains(owners, owner))
			p.do(owner, err)
			everywhere = everywhere && named
		}
		switch {
		case !pr.Held && !everywhere:
			p.out.Owed = append(p.out.Owed, pr.Event.ID)
		// What is offered by its author does not wait for announced repositories.
		case pr.Held && (everywhere || offered):
			ready = append(ready, pr.Event)
		}
	}
	return ready
}

// nameCommit names the commit of a pull request in an owner's repository, if that may be changed,
// and reports whether it is named there then. Beyond maxNamed that is for the next time.
func (p *pass) nameCommit(ctx context.Context, owner string, pr repostate.PullRequest, mayChange bool) (named bool, err error) {
	repo := p.repo(owner)
	if repo == nil || repo.IsNamed(PrefixNostr+pr.Event.ID, pr.Commit) || !mayChange {
		return repo != nil && repo.IsNamed(PrefixNostr+pr.Event.ID, pr.Commit), nil
	}
	there, err := p.gather(ctx, owner, p.pullSources(pr), []string{pr.Commit})
	if !there && err == nil {
		there = p.fromElsewhere(ctx, owner, pr)
	}
	if !there || err != nil {
		return false, err
	}
	if p.named == maxNamed {
		p.later(repo.Place(), time.Now())
		return false, nil
	}
	p.named++
	err = repo.SetRef(ctx, PrefixNostr+pr.Event.ID, pr.Commit)
	if p.isBroken(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("name the commit of %s in %s: %w", pr.Event.ID, repo.Ref(), err)
	}
	return true, nil
}

// pullSources are the owners in whose repositories the commit of a pull request may be: those that
// it is for, and those for whom its author speaks.
func (p *pass) pullSources(pr repostate.PullRequest) []string {
	tagged := p.v.Tagged(pr)
	sources := slices.Clone(tagged[:min(len(tagged), maxSources)])
	for _, owner := range p.sources(pr.Event.PubKey) {
		if !slices.Contains(sources, owner) {
			sources = append(sources, owner)
		}
	}
	return sources
}

// fromElsewhere copies the commit of a pull request from a repository of another identifier that it
// is for too, or in which its author offers it, if it is named there. That may be another worker's,
// and may change or go at any time: what cannot be read there is not there.
func (p *pass) fromElsewhere(ctx context.Context, owner string, pr repostate.PullRequest) (came bool) {
	places := p.Tips.where(pr.Event.ID)
	for _, ref := range pr.Repos {
		places = append(places, repository.Place{RepoRef: ref})
	}
	for _, identifier := range pr.Offered {
		places = append(places, repository.Place{RepoRef: nostr.RepoRef{PubKey: pr.Event.PubKey, Identifier: identifier}, PRs: true})
	}
	for _, at := range places {
		from, err := p.Store.At(at)
		if err != nil || at == p.place(owner) || !from.IsNamed(PrefixNostr+pr.Event.ID, pr.Commit) {
			continue
		}
		if ended, err := from.Ended(); ended != nil || err != nil {
			continue // its owner gave it up
		}
		if err := p.repos[owner].Share(ctx, from, []string{pr.Commit}); err != nil {
			p.Log.Debug("a commit could not be copied", "from", at, "to", p.place(owner), "error", err)
			continue
		}
		p.has[owner][pr.Commit] = true
		return true
	}
	return false
}

// checkTips removes references under refs/nostr/ that name another commit than their event does,
// whose event was deleted, or has not come in time.
func (p *pass) checkTips(ctx context.Context, owner string) error {
	repo := p.repos[owner]
	if repo == nil {
		return nil
	}
	_, err := p.eachTip(ctx, repo, func(event string, t tip) (fate, error) {
		commit, known, err := CommitOf(ctx, p.v, p.Accepted, event)
		switch {
		case err != nil:
			return fate{}, err
		case known && commit == t.commit:
			_, held := p.v.Commit(event)
			return fate{right: !held}, nil
		case known:
			return fate{goes: "its event names another commit"}, nil
		}
		return p.await(t), nil
	})
	return err
}

// fate is what becomes of a reference under refs/nostr/.
type fate struct {
	goes  string    // why it goes; empty: it stays
	until time.Time // its event has not come, and may come until then
	right bool      // its event is accepted and names that commit
}

// await is the fate of a reference whose event is not known. One that was known once does not wait.
func (p *pass) await(t tip) fate {
	until := t.placed.Add(p.Hold)
	switch {
	case !t.waits:
		return fate{goes: "its event is gone"}
	case !time.Now().Before(until):
		return fate{goes: "its event has not come"}
	}
	return fate{until: until}
}

// eachTip decides about every reference under refs/nostr/ of a repository and does what is decided.
// It returns how many are left. What is right already is not looked at again.
func (p *pass) eachTip(ctx context.Context, repo *repository.Repo, decide func(event string, t tip) (fate, error)) (many int, err error) {
	notes, err := repo.Waiting()
	if err != nil {
		return 0, err
	}
	tips, err := readTips(ctx, repo, notes)
	if err != nil {
		return 0, err
	}
	waits := map[string]bool{}
	left := map[string]bool{}
	for event, t := range tips {
		if p.Tips.isRight(repo.Place(), event) {
			left[event] = true
			continue
		}
		fate, err := decide(event, t)
		if err != nil {
			return 0, err
		}
		if fate.goes != "" {
			if err := repo.DeleteRef(ctx, PrefixNostr+event); err != nil {
				return 0, fmt.Errorf("remove %s%s from %s: %w", PrefixNostr, event, repo.Place(), err)
			}
			p.Log.Info("a pushed commit is removed", "repository", repo.Place(), "event", event, "reason", fate.goes)
			continue
		}
		left[event] = fate.right
		if !fate.until.IsZero() {
			waits[event] = true
			p.later(repo.Place(), fate.until)
		}
	}
	p.Tips.replace(repo.Place(), left, p.doubts)
	for _, note := range notes {
		if waits[note.Event] {
			continue
		}
		if err := repo.ForgetWaiting(note.Event); err != nil {
			return 0, err
		}
		if p.Arrived != nil {
			p.Arrived(repo.Place(), note.Event)
		}
	}
	return len(left), nil
}

// alignContribution looks at the repository in which a contributor offers pull requests of the
// identifier (GRASP-06). What does not match its event goes, and so does a repository without any
// reference; the commit of a held event that matches is offered to the announced repositories.
func (p *pass) alignContribution(ctx context.Context, contributor string) error {
	at := p.place(contributor)
	at.PRs = true
	repo, err := p.Store.At(at)
	if err != nil || !repo.Exists() {
		return err
	}
	if err := repo.Sweep(); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	left, err := p.eachTip(ctx, repo, func(event string, t tip) (fate, error) {
		return p.decideContribution(ctx, repo, event, t)
	})
	if err != nil || left > 0 {
		return err
	}
	if err := repo.Remove(ctx); err != nil {
		return err
	}
	p.Log.Info("a contributor's repository without a pull request is removed", "repository", at)
	return nil
}

// decideContribution decides about one reference in a contributor's repository.
func (p *pass) decideContribution(ctx context.Context, repo *repository.Repo, event string, t tip) (fate, error) {
	ev, err := p.Accepted(ctx, event)
	accepted := ev != nil
	if !accepted && err == nil {
		ev = p.Held(event)
	}
	if err != nil || ev == nil {
		return p.await(t), err
	}
	if mismatch := repostate.CheckContribution(ev, repo.Ref(), t.commit, p.v.Domain); mismatch != nil {
		return fate{goes: mismatch.Error()}, nil
	}
	if slices.ContainsFunc(p.v.PullRequests, func(pr repostate.PullRequest) bool { return pr.Held && pr.Event.ID == event }) {
		p.offered[event] = true
		return fate{}, nil
	}
	if accepted {
		return fate{right: true}, nil
	}
	return fate{until: time.Now().Add(p.Hold)}, nil // held for another identifier, by a clock of its own
}

// tip is a reference under refs/nostr/.
type tip struct {
	commit string
	placed time.Time // when it was pushed; what has no file of its own is as old as can be
	waits  bool      // it was pushed before its event came
}

// readTips returns the references under refs/nostr/ by the rest of their names. Nothing here ever
// packs references, so that as a rule each is a file, and where there is none no git need be asked.
func readTips(ctx context.Context, repo *repository.Repo, notes []repository.WaitingPush) (map[string]tip, error) {
	folder := filepath.Join(repo.Path(), filepath.FromSlash(PrefixNostr))
	files, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for the tips of pull requests: %w", err)
	}
	_, packed := os.Lstat(filepath.Join(repo.Path(), "packed-refs"))
	if len(files) == 0 && errors.Is(packed, fs.ErrNotExist) {
		return nil, nil
	}
	refs, err := repo.Refs()
	if err != nil {
		return nil, err
	}
	tips := map[string]tip{}
	for name, id := range refs.ByName {
		event, is := strings.CutPrefix(name, PrefixNostr)
		if !is {
			continue
		}
		t := tip{commit: id, waits: slices.ContainsFunc(notes, func(note repository.WaitingPush) bool { return note.Event == event })}
		if info, err := os.Lstat(filepath.Join(folder, filepath.FromSlash(event))); err == nil {
			t.placed = info.ModTime()
		}
		tips[event] = t
	}
	return tips, nil
}

// CommitOf says which commit an event names that is known, held or accepted: only a pull request or
// an update names one, so that none may be pushed under the name of another event.
func CommitOf(ctx context.Context, v repostate.View, accepted func(ctx context.Context, id string) (*nostr.Event, error), id string) (commit string, known bool, err error) {
	if commit, known := v.Commit(id); known {
		return commit, true, nil
	}
	if !nostr.IsHex64(id) {
		return "", false, nil
	}
	ev, err := accepted(ctx, id)
	if ev == nil || err != nil {
		return "", false, err
	}
	pr, err := nostr.ParsePullRequest(ev)
	if err != nil {
		return "", true, nil // of another kind
	}
	return pr.Commit, true, nil
}
