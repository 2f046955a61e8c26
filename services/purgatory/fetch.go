package purgatory

import (
	"context"
	"errors"
	"time"

	"tendril.dev/proto"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/repostate"
)

// fetch asks one git server for what one repository misses.
func (w *worker) fetch(ctx context.Context, identifier, url string, want repostate.Want) hunt.Outcome {
	ctx, done, err := w.shards.During(ctx, identifier)
	if err != nil {
		return hunt.Failed // another worker's now
	}
	defer done()
	repo, err := w.store.At(placeOf(want.Owner, identifier))
	if err == nil && !repo.Exists() { // one of many that are made little by little
		err = w.makeRepository(ctx, repo)
	}
	if err != nil {
		w.log.Error("fetch", "identifier", identifier, "error", err)
		return hunt.Failed
	}
	from := payer{author: want.Payer, served: want.Served}
	err = w.budget.refresh(ctx, from)
	if err == nil {
		err = w.budget.check(from, 0)
	}
	if err != nil {
		w.log.Warn("not fetched", "identifier", identifier, "url", url, "reason", err)
		w.tell(identifier, proto.GitFailed, proto.GitNotice{Owner: npub(want.Owner), URL: url, Reason: err.Error(), Objects: some(want.Objects)})
		return hunt.Failed
	}
	limits := w.limits
	limits.MaxBytes = min(limits.MaxBytes, w.budget.left(from))
	domain, began := w.metrics.domain(hunt.HostOf(url)), time.Now()
	w.metrics.inFlight.WithLabelValues(domain).Inc()
	defer w.metrics.inFlight.WithLabelValues(domain).Dec()
	result, err := fetch.Fetch(ctx, w.guard, url, repo, want.Objects, limits)
	took := time.Since(began)
	w.budget.spend(from, result.Bytes)
	if err != nil && ctx.Err() != nil {
		return hunt.Failed // cut off by our own stop: no failure of the server
	}
	w.metrics.fetched(domain, result, err)
	notice := proto.GitNotice{Owner: npub(want.Owner), URL: url, Bytes: result.Bytes, Millis: took.Milliseconds(), Objects: some(result.Got)}
	if err != nil {
		return w.fetchFailed(identifier, want, notice, err)
	}
	w.tell(identifier, proto.GitFetched, notice)
	w.log.Info("fetched", "identifier", identifier, "url", url, "objects", len(result.Got), "bytes", result.Bytes, "took", took.Round(time.Millisecond))
	return hunt.Brought
}

// fetchFailed tells why a fetch brought nothing.
func (w *worker) fetchFailed(identifier string, want repostate.Want, notice proto.GitNotice, err error) hunt.Outcome {
	outcome, reason := hunt.Failed, err
	if failed, ok := errors.AsType[*fetch.Error](err); ok {
		reason = failed.Err // the URL stands beside it
		if failed.Cause == fetch.CauseDNS || failed.Cause == fetch.CauseTLS {
			outcome = hunt.Broken
		}
	}
	notice.Reason, notice.Objects = reason.Error(), some(want.Objects)
	w.tell(identifier, proto.GitFailed, notice)
	w.log.Warn("fetch failed", "identifier", identifier, "url", notice.URL, "reason", reason)
	return outcome
}
