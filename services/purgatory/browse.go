package purgatory

import (
	"context"
	"errors"

	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
)

// browser answers what pages show of the data of a repository.
type browser struct{ hosting *hosting }

// folder answers what a page shows of a folder or a file.
func (b browser) folder(ctx context.Context, ref nostr.RepoRef, q proto.RepoFolderQuestion) (a proto.RepoFolderAnswer,
	err error) {
	repo, refs, err := b.cloned(ctx, ref)
	if err != nil || refs[q.Name] == "" {
		return a, err
	}
	a, err = repo.Folder(ctx, q.Client, refs[q.Name], q.Path)
	if !a.Partial { // what is, is no function of the references
		a.RefsSum = proto.SumOfRefs(refs)
	}
	return a, busy(err)
}

// log answers what a page shows of the commits of a branch or tag.
func (b browser) log(ctx context.Context, ref nostr.RepoRef, q proto.RepoLogQuestion) (a proto.RepoLogAnswer,
	err error) {
	repo, refs, err := b.cloned(ctx, ref)
	if err != nil || refs[q.Name] == "" {
		return a, err
	}
	a, err = repo.Log(ctx, q.Client, refs[q.Name], q.Skip)
	a.RefsSum = proto.SumOfRefs(refs)
	return a, busy(err)
}

// ages answers how old the branches and tags of a repository are.
func (b browser) ages(ctx context.Context, ref nostr.RepoRef, q proto.RepoAgesQuestion) (a proto.RepoAgesAnswer,
	err error) {
	repo, refs, err := b.cloned(ctx, ref)
	if err != nil || repo == nil {
		return a, err
	}
	a.Times, err = repo.Ages(ctx, q.Client)
	a.RefsSum = proto.SumOfRefs(refs)
	return a, busy(err)
}

// cloned returns a repository that may be cloned, and what its branches and tags name, by their full
// names; nil if there is none. Pages show what these name, so nothing that a clone does not bring.
func (b browser) cloned(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, map[string]string, error) {
	repo, err := b.hosting.repository(ctx, repository.Place{RepoRef: ref})
	switch {
	case errors.Is(err, githttp.ErrNotFound):
		return nil, nil, nil
	case errors.Is(err, repository.ErrElsewhere):
		return nil, nil, gitquery.ErrMoved
	case err != nil:
		return nil, nil, err
	}
	refs, err := repo.BranchesAndTags()
	return repo, refs.ByName, err
}

// busy is an error as an asker is told: where no process is free nothing was done.
func busy(err error) error {
	if errors.Is(err, repository.ErrBusy) {
		return gitquery.ErrBusy
	}
	return err
}
