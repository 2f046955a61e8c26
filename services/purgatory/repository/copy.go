package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// CopyFrom brings the objects that are reachable from tips, and that r lacks, from another
// repository of the same store. Nothing is copied if all tips are there already.
func (r *Repo) CopyFrom(ctx context.Context, from *Repo, tips []string) error {
	missing, err := r.Missing(ctx, tips)
	if err != nil {
		return fmt.Errorf("copy objects: %w", err)
	}
	if len(missing) == 0 {
		return nil
	}
	if gone, err := from.Missing(ctx, missing); err != nil || len(gone) > 0 {
		return errors.Join(err, absent(gone))
	}
	common, err := r.commonTips(ctx, from)
	if err != nil {
		return fmt.Errorf("copy objects: %w", err)
	}
	release, err := r.store.acquire(ctx, 2) // for both ends of the pipe
	if err != nil {
		return fmt.Errorf("copy objects: %w", err)
	}
	defer release()

	pipe, packed := io.Pipe()
	pack := from.Command("pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q")
	pack.held = true
	pack.Stdin = strings.NewReader(strings.Join(missing, "\n") + "\n--not\n" + strings.Join(common, "\n") + "\n")
	pack.Stdout = packed
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		err := pack.Run(ctx)
		packed.CloseWithError(err)
		return err
	})
	both.Go(func() error {
		_, _, err := r.storePack(ctx, pipe, intake{slotHeld: true})
		pipe.CloseWithError(errors.Join(err, io.ErrClosedPipe))
		return err
	})
	if err := both.Wait(); err != nil {
		return fmt.Errorf("copy objects: %w", err)
	}
	return nil
}

func absent(ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	return fmt.Errorf("copy objects: %d of them are not in the repository to copy from, %s first", len(ids), ids[0])
}

// commonTips are objects that r's references name and that the other repository has.
func (r *Repo) commonTips(ctx context.Context, other *Repo) ([]string, error) {
	tips, err := r.Tips(ctx, maxCommonTips)
	if err != nil {
		return nil, err
	}
	types, err := other.Types(ctx, tips)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tips, func(id string) bool { return types[id] == "" }), nil
}

const maxCommonTips = 1000
