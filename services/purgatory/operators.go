package purgatory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// maxBeside bounds the other repositories of the identifier that are named with one.
const maxBeside = 200

// newAnswers are what is answered to questions about repositories of the shards that this worker
// holds.
func (w *answers) newAnswers() gitquery.Answers {
	show := func(verb proto.RepoVerb) func(context.Context, nostr.RepoRef) (proto.RepoStatus, error) {
		return func(ctx context.Context, ref nostr.RepoRef) (proto.RepoStatus, error) {
			return w.carryOut(ctx, verb, ref)
		}
	}
	pages := browser{w.hosting}
	return gitquery.Answers{
		List: w.listRepos, Show: show(proto.RepoShow), References: w.references, Waits: w.whatWaits,
		Folder: pages.folder, Log: pages.log, Ages: pages.ages,
		Restore: show(proto.RepoRestore), Remove: show(proto.RepoRemove),
	}
}

// listRepos lists the repositories of a shard as they were when the worker last looked at them.
func (w *answers) listRepos(_ context.Context, shard int, after string) (proto.RepoListAnswer, error) {
	if w.shards.of(shard) == notHeld {
		return proto.RepoListAnswer{}, gitquery.ErrMoved
	}
	var all []proto.RepoStatus
	for at, s := range w.statuses.Range {
		if proto.ShardOf(at.(repository.Place).Identifier) == shard {
			all = append(all, s.(proto.RepoStatus))
		}
	}
	ref := func(s proto.RepoStatus) string { return s.Ref }
	slices.SortFunc(all, func(a, b proto.RepoStatus) int { return strings.Compare(a.Ref, b.Ref) })
	page, more := gitquery.Page(all, ref, after)
	return proto.RepoListAnswer{Repos: page, More: more}, nil
}

// references are the branches and tags of a repository.
func (w *answers) references(_ context.Context, ref nostr.RepoRef,
	q proto.RepoReferencesQuestion) (answer proto.RepoReferencesAnswer, err error) {
	repo, err := w.here(ref)
	if err != nil {
		return answer, err
	}
	refs, err := repo.BranchesAndTags()
	if err != nil {
		return answer, err
	}
	var all []proto.RepoReference
	for _, name := range slices.Sorted(maps.Keys(refs.ByName)) {
		if repostate.IsBranchOrTag(name) {
			all = append(all, proto.RepoReference{Name: name, Object: refs.ByName[name]})
		}
	}
	answer.Head = refs.Head
	answer.References, answer.More = gitquery.Page(all, func(r proto.RepoReference) string { return r.Name }, q.After)
	return answer, nil
}

// whatWaits tells a visitor's page whether a repository is here, and what it waits for.
func (w *answers) whatWaits(ctx context.Context, ref nostr.RepoRef) (answer proto.RepoWaitsAnswer, err error) {
	switch _, err = w.hosting.repository(ctx, repository.Place{RepoRef: ref}); {
	case errors.Is(err, githttp.ErrNotFound):
		return answer, nil
	case errors.Is(err, repository.ErrElsewhere):
		return answer, gitquery.ErrMoved
	case err != nil:
		return answer, err
	}
	return proto.RepoWaitsAnswer{Here: true, Waits: w.waits(ctx, ref)}, nil
}

// here is a repository that is on the disk of this worker.
func (w *answers) here(ref nostr.RepoRef) (*repository.Repo, error) {
	if !w.shards.Holds(ref.Identifier) {
		return nil, gitquery.ErrMoved
	}
	repo, err := w.store.Repo(ref)
	if err == nil && !repo.Exists() {
		err = fmt.Errorf("nothing of %s is here", readable(ref))
	}
	return repo, err
}

// countRepos counts them, for `tendril status`.
func (w *answers) countRepos(figures map[string]int64) {
	for _, s := range w.statuses.Range {
		s := s.(proto.RepoStatus)
		if figures["repositories_"+string(s.State)]++; s.NoAuthority != "" {
			figures["repositories_nobody"]++
		}
	}
}

// noAuthorityOver is why no one has authority over a hosted repository, and what would change that;
// "": there is authority.
func noAuthorityOver(v repostate.View, owner string) string {
	if noAuthority := v.Group(owner).NoAuthority; v.Hosts(owner) && noAuthority.String() != "" {
		return noAuthority.String() + "; " + noAuthority.Advice()
	}
	return ""
}

func (w *answers) carryOut(ctx context.Context, verb proto.RepoVerb, ref nostr.RepoRef) (s proto.RepoStatus,
	err error) {
	repo, err := w.here(ref)
	if err != nil {
		return s, err
	}
	if verb == proto.RepoShow {
		return w.showRepo(ctx, repo)
	}
	err = repo.WithLock(ctx, func(repo *repository.Locked) (err error) {
		if verb == proto.RepoRestore {
			s, err = w.restoreRepo(ctx, repo)
		} else {
			s, err = w.removeNow(ctx, repo)
		}
		return err
	})
	if errors.Is(err, errStillHosted) {
		err = fmt.Errorf("%s is hosted: only its owner can give it up", readable(ref))
	}
	if errors.Is(err, repository.ErrElsewhere) {
		err = gitquery.ErrMoved
	}
	return s, err
}

// status reads how a repository stands.
func (w *retention) status(ctx context.Context, repo *repository.Repo, hosted bool) (s proto.RepoStatus, how ending,
	err error) {
	s = proto.RepoStatus{Ref: repo.RepoRef.String(), State: proto.RepoHosted}
	if !hosted {
		if how, err = w.howItEnds(ctx, repo); err != nil {
			return s, how, err
		}
		s.State, s.Until = proto.RepoEnded, how.until
		if how.note != nil {
			s.Reason, s.Announcement, s.Since, s.Kept = how.note.Reason, how.note.Announcement, how.note.Since, how.note.Kept
		}
	}
	if s.Reason == "" && w.node.Bans.Repository(repo.RepoRef) != nil {
		s.Reason = repostate.Banned
	}
	for _, e := range w.hosting.heldAt(repo.RepoRef) {
		if hosted {
			s.State, s.Since, s.Until = proto.RepoHeld, e.HeldAt, e.ExpiresAt
		}
	}
	refs, err := repo.BranchesAndTags()
	pulls, failed := repo.NamesBelow(repostate.PrefixNostr)
	err = cmp.Or(err, failed)
	if s.References = len(refs.ByName) + len(pulls); s.References > 0 {
		s.Changed, err = repo.Moved()
	}
	if err != nil {
		s.Damage = err.Error()
	}
	s.Bytes, err = repo.Bytes()
	return s, how, err
}

// showRepo tells all about a repository.
func (w *answers) showRepo(ctx context.Context, repo *repository.Repo) (s proto.RepoStatus, err error) {
	hosted, err := w.hosting.hosts(ctx, repo.RepoRef, true)
	if err == nil {
		s, _, err = w.retention.status(ctx, repo, hosted)
	}
	if err != nil {
		return s, err
	}
	for other, err := range w.store.Places(ctx, nostr.RepoRef{Identifier: repo.Identifier}) {
		if err != nil {
			return s, err
		}
		if other != repo.Place && len(s.Beside) < maxBeside {
			s.Beside = append(s.Beside, other.String())
		}
	}
	s.Waits = w.waits(ctx, repo.RepoRef)
	if hosted {
		v, err := w.knowledge.around(ctx, repo.Identifier, []string{repo.PubKey}, nil)
		if err != nil {
			return s, err
		}
		s.NoAuthority = noAuthorityOver(v, repo.PubKey)
	}
	s.Events, err = w.knowledge.count(ctx, namingOf(repo.RepoRef)...)
	if err == nil {
		s.States, err = w.knowledge.count(ctx, statesOf(repo.Identifier))
	}
	return s, err
}

// restoreRepo cancels the removal of a repository: it is kept until its owner comes back, or an
// operator removes it. It is not served: that its owner gave it up is for its owner to take back.
func (w *answers) restoreRepo(ctx context.Context, repo *repository.Locked) (s proto.RepoStatus, err error) {
	hosted, err := w.hosting.hosts(ctx, repo.RepoRef, true)
	if err != nil {
		return s, err
	}
	s, how, err := w.retention.status(ctx, repo.Repo, hosted)
	if err != nil || how.note == nil {
		return s, err // it is here, or has no end
	}
	how.note.Kept = true
	if err := repo.SetEnded(how.note); err != nil {
		return s, err
	}
	w.log.Info("an operator has cancelled the removal of a repository", "repository", repo.RepoRef)
	s.Kept, s.Until = true, time.Time{}
	w.statuses.Store(repo.Place, s)
	return s, nil
}

// removeNow removes a repository that is not hosted, and tells what it was.
func (w *answers) removeNow(ctx context.Context, repo *repository.Locked) (proto.RepoStatus, error) {
	status, err := w.showRepo(ctx, repo.Repo)
	if err != nil {
		return status, err
	}
	if err := w.retention.remove(ctx, repo, true); err != nil {
		return status, err
	}
	w.log.Info("an operator has removed a repository", "repository", repo.RepoRef)
	return status, nil
}

// readable is how people write a repository.
func readable(ref nostr.RepoRef) string {
	return nostr.Npub(ref.PubKey) + "/" + strings.ToValidUTF8(ref.Identifier, "?")
}
