package purgatory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// fetch asks one git server for what one repository misses, and tells how that went.
func (w *fetcher) fetch(ctx context.Context, identifier string, from repostate.Source,
	want repostate.Want) hunt.Outcome {
	url := from.URL
	ctx, done, err := w.shards.During(ctx, identifier)
	if err != nil {
		return hunt.Outcome{Failed: fetch.CauseCanceled} // another worker's now
	}
	defer done()
	began := time.Now()
	ctx, end := w.node.Bans.Unless(ctx, bans.Subject{Outside: bans.Outside{GitHost: hunt.HostOf(url)}})
	defer end()
	result, err := w.fetchWithin(ctx, identifier, from, want)
	if banned, is := errors.AsType[*bans.BannedError](context.Cause(ctx)); is && err != nil {
		return hunt.Outcome{Failed: fetch.CauseOurs, Answer: banned.Error(), Requests: result.Requests}
	}
	if err != nil && ctx.Err() != nil {
		return hunt.Outcome{Failed: fetch.CauseCanceled} // cut off by our own stop: no failure of the server
	}
	notice := proto.GitNotice{Owner: nostr.Npub(want.Owner), URL: url, Bytes: result.Bytes,
		Millis: time.Since(began).Milliseconds(), Objects: some(result.Got)}
	if err == nil {
		w.notices.tell(identifier, proto.GitFetched, notice)
		w.log.Info("fetched", "identifier", identifier, "url", url, "objects", len(result.Got), "bytes", result.Bytes,
			"millis", notice.Millis)
		return hunt.Outcome{Answer: fmt.Sprintf("brought %d bytes", result.Bytes), Requests: result.Requests,
			Pause: result.TooOften, RetryAfter: result.RetryAfter}
	}
	notice.Reason, notice.Objects = err.Error(), some(want.Objects)
	w.notices.tell(identifier, proto.GitFailed, notice)
	if _, unpaid := errors.AsType[*repostate.Refused](err); unpaid {
		return hunt.Outcome{Failed: fetch.CauseOurs} // the server was not asked
	}
	return hunt.Outcome{
		Failed: fetch.Classify(err), Answer: notice.Reason, Requests: result.Requests, Pause: result.TooOften,
		RetryAfter: result.RetryAfter,
	}
}

// fetchWithin is fetch.Fetch within the budget of who pays.
func (w *fetcher) fetchWithin(ctx context.Context, identifier string, source repostate.Source,
	want repostate.Want) (result fetch.Result, err error) {
	repo, err := w.store.At(placeOf(want.Owner, identifier))
	if err == nil && !repo.Exists() { // one of many that are made little by little
		err = w.hosting.makeRepository(ctx, repo)
	}
	var into *repository.Leased
	if err == nil {
		into, err = repo.Lease()
	}
	if err != nil {
		return result, err
	}
	defer into.Done()
	from, limits := payer{author: want.Payer, served: want.Served}, w.limits
	if _, err = w.budget.check(ctx, from, 0); err != nil {
		return result, err
	}
	// What a server sends counts although nothing of it may be of use: else it could send without end.
	limits.Party, limits.Account = "author "+want.Payer, account{w.budget, from}
	url, guard := source.URL, w.guard
	if w.knowledge.rules.IsPeer(url) {
		limits.Prover = w
	}
	if source.Here.Identifier != "" {
		if url, err = w.forkAt(ctx, source.Here); err != nil {
			return result, err
		}
		guard = w.inside
	}
	domain := w.notices.metrics.domain(hunt.HostOf(source.URL))
	w.notices.metrics.inFlight.WithLabelValues(domain).Inc()
	defer w.notices.metrics.inFlight.WithLabelValues(domain).Dec()
	result, err = w.fetchInto(ctx, guard, into, url, want.Objects, limits)
	commits := slices.DeleteFunc(slices.Clone(result.Got), func(id string) bool {
		return !slices.Contains(want.Commits, id)
	})
	w.releaser.Brought(into.Place, want.Payer, commits)
	if err == nil || ctx.Err() == nil {
		w.notices.metrics.fetched(domain, result, err)
	}
	return result, err
}

// Prove implements [fetch.Prover], for the peers of a private service.
func (w *fetcher) Prove(url string) (string, error) {
	key, err := w.node.Settings.FindKey(".")
	if err != nil {
		return "", fmt.Errorf("prove to a peer who we are: %w", err)
	}
	return nostr.NewProof(url, key.Sign)
}

// maxAgain bounds the commits that are fetched again in one go though they lie here.
const maxAgain = 8

// fetchInto fetches what is missing, and what lies there while no reference reaches it: commits of
// pull requests, which count only when they come.
func (w *fetcher) fetchInto(ctx context.Context, guard *netguard.Guard, into *repository.Leased, url string,
	objects []string, limits fetch.Limits) (result fetch.Result, err error) {
	missing, err := into.Missing(ctx, objects)
	if err != nil {
		return result, err
	}
	lying := slices.DeleteFunc(slices.Clone(objects), func(id string) bool { return slices.Contains(missing, id) })
	if lying, err = into.Unreached(ctx, lying); err != nil {
		return result, err
	}
	if len(missing) > 0 || len(lying) == 0 {
		result, err = fetch.Fetch(ctx, guard, url, into, objects, limits)
		result.Got = slices.DeleteFunc(result.Got, func(id string) bool { return slices.Contains(lying, id) })
	}
	limits.Again = true
	for _, id := range lying[:min(len(lying), maxAgain)] {
		left := limits
		if left.MaxBytes -= result.Bytes; left.MaxBytes <= 0 || result.TooOften {
			break
		}
		again, failed := fetch.Fetch(ctx, guard, url, into, []string{id}, left)
		result.Bytes, result.Requests = result.Bytes+again.Bytes, result.Requests+again.Requests
		result.TooOften, result.RetryAfter = again.TooOften, again.RetryAfter
		if failed == nil {
			result.Got = append(result.Got, id)
		}
		err = failed
	}
	if len(result.Got) > 0 {
		err = nil // a part came
	}
	return result, err
}

// forkAt is the address of a repository that is served here, at the worker that has it. What is
// held, was given up or is banned is not there: nothing is copied from it.
func (w *fetcher) forkAt(ctx context.Context, ref nostr.RepoRef) (url string, err error) {
	ev, err := query.First(ctx, w.knowledge.events, nostr.Filter{
		Kinds: []int{nostr.KindAnnouncement}, Authors: []string{ref.PubKey}, Tags: nostr.TagMap{"d": {ref.Identifier}},
	})
	if err != nil && !errors.Is(err, query.ErrNotFound) {
		return "", fmt.Errorf("look for the announcement of %s: %w", ref, err)
	}
	served := false
	if err == nil && w.node.Bans.Event(ev) == nil {
		if served, err = w.hosting.Hosts(ctx, ref); err != nil {
			return "", err
		}
	}
	if !served {
		return "", &fetch.Error{Cause: fetch.CauseNotFound, Err: errors.New("no such repository is served here")}
	}
	holder, held := w.directory.Holder(proto.ShardName(proto.ShardOf(ref.Identifier)))
	if !held {
		return "", &fetch.Error{Cause: netguard.CauseConnect, Err: errors.New("no worker has it at the moment")}
	}
	return "http://" + holder.Address + nostr.RepositoryURLPath(nostr.Npub(ref.PubKey), ref.Identifier), nil
}
