package purgatory

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"tendril.dev/lib/nip34"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/hunt"
)

// Fetch implements hunt.Ground: it asks one git server for what one repository misses.
func (w *worker) Fetch(ctx context.Context, identifier, url string, want dossier.Want, reached func(netip.Addr) bool) hunt.Outcome {
	repo, err := w.store.Repo(nip34.RepoRef{PubKey: want.Owner, Identifier: identifier})
	if err == nil && !repo.Exists() { // one of many that are made little by little
		err = w.makeRepository(ctx, repo)
	}
	if err != nil {
		w.log.Error("fetch", "identifier", identifier, "error", err)
		return hunt.Failed
	}
	limits := w.limits
	limits.Reached = reached
	began := time.Now()
	result, err := fetch.Fetch(ctx, w.guard, url, repo, want.Objects, limits)
	took := time.Since(began)
	if err != nil && ctx.Err() != nil {
		return hunt.Failed // cut off by our own stop: no failure of the server
	}
	failed, _ := errors.AsType[*fetch.Error](err)
	if failed != nil && failed.Cause == fetch.CausePutOff {
		return hunt.PutOff
	}
	w.metrics.fetched(url, result, err)
	notice := proto.GitNotice{Owner: npub(want.Owner), URL: url, Bytes: result.Bytes, Millis: took.Milliseconds(), Objects: some(result.Got)}
	if err != nil {
		reason := err
		if failed != nil {
			reason = failed.Err // the URL stands beside it
		}
		notice.Reason, notice.Objects = reason.Error(), some(want.Objects)
		w.tell(identifier, proto.GitFailed, notice)
		w.log.Info("fetch failed", "identifier", identifier, "url", url, "error", reason)
		return hunt.Failed
	}
	w.tell(identifier, proto.GitFetched, notice)
	w.log.Info("fetched", "identifier", identifier, "url", url, "objects", result.Objects, "bytes", result.Bytes, "took", took.Round(time.Millisecond))
	if len(result.Got) == 0 {
		return hunt.Failed
	}
	return hunt.Brought
}
