package purgatory

import (
	"context"
	"errors"

	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// browser answers what pages show of the data of a repository.
type browser struct{ hosting *hosting }

// folder answers what a page shows of a folder or a file.
func (b browser) folder(ctx context.Context, ref nostr.RepoRef, q proto.RepoFolderQuestion) (a proto.RepoFolderAnswer,
	err error) {
	repo, object, err := b.named(ctx, ref, q.Name)
	if err != nil || repo == nil {
		return a, err
	}
	a, err = repo.Folder(ctx, q.Client, object, q.Path)
	return a, busy(err)
}

// log answers what a page shows of the commits of a branch or tag.
func (b browser) log(ctx context.Context, ref nostr.RepoRef, q proto.RepoLogQuestion) (a proto.RepoLogAnswer,
	err error) {
	repo, object, err := b.named(ctx, ref, q.Name)
	if err != nil || repo == nil {
		return a, err
	}
	a, err = repo.Log(ctx, q.Client, object, q.Skip)
	return a, busy(err)
}

// ages answers how old the branches and tags of a repository are.
func (b browser) ages(ctx context.Context, ref nostr.RepoRef, q proto.RepoAgesQuestion) (a proto.RepoAgesAnswer,
	err error) {
	repo, err := b.cloned(ctx, ref)
	if err != nil || repo == nil {
		return a, err
	}
	a.Times, err = repo.Ages(ctx, q.Client)
	return a, busy(err)
}

// cloned returns a repository that may be cloned; nil if there is none.
func (b browser) cloned(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	repo, err := b.hosting.repository(ctx, repository.Place{RepoRef: ref})
	switch {
	case errors.Is(err, githttp.ErrNotFound):
		return nil, nil
	case errors.Is(err, repository.ErrElsewhere):
		return nil, gitquery.ErrMoved
	}
	return repo, err
}

// named returns a repository that may be cloned, and the object that a branch or tag of it names;
// nil if there is none. So pages show nothing that a clone does not bring.
func (b browser) named(ctx context.Context, ref nostr.RepoRef, name string) (repo *repository.Repo, object string,
	err error) {
	repo, err = b.cloned(ctx, ref)
	if err != nil || repo == nil || !repostate.IsBranchOrTag(name) {
		return nil, "", err
	}
	refs, err := repo.BranchesAndTags()
	if object = refs.ByName[name]; err != nil || object == "" {
		return nil, "", err
	}
	return repo, object, nil
}

// busy is an error as an asker is told: where no process is free nothing was done.
func busy(err error) error {
	if errors.Is(err, repository.ErrBusy) {
		return gitquery.ErrBusy
	}
	return err
}
