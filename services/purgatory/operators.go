package purgatory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/shards"
)

const (
	// listAtOnce bounds the repositories of one answer.
	listAtOnce = 200
	// askedTime bounds what is done for one question of an operator.
	askedTime = 5 * time.Minute
)

// answerOperators answers what operators ask about the repositories of a shard, one question after
// the other, until ctx ends or stop is called.
func (w *worker) answerOperators(ctx context.Context, shard int) (stop func()) {
	var subs []*nats.Subscription
	for _, verb := range proto.RepoVerbs() {
		sub, err := w.node.Bus.Conn.Subscribe(proto.RepoSubject(verb, shard), func(m *nats.Msg) { w.answer(ctx, shard, verb, m) })
		if err != nil {
			w.log.Warn("operators cannot ask about repositories", "shard", shard, "error", err)
			continue
		}
		subs = append(subs, sub)
	}
	return func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe() // it fails only where the connection has ended
		}
	}
}

func (w *worker) answer(ctx context.Context, shard int, verb proto.RepoVerb, m *nats.Msg) {
	if _, err := proto.ParseRepoAnswerSubject(m.Reply); err != nil {
		return // it is no operator's inbox
	}
	ctx, cancel := context.WithTimeout(ctx, askedTime)
	defer cancel()
	repos, err := w.carryOut(ctx, shard, verb, m.Data)
	answer := proto.RepoAnswer{Repos: repos}
	if err != nil {
		answer = proto.RepoAnswer{Error: err.Error()}
	}
	data, err := json.Marshal(answer)
	if err == nil {
		err = w.node.Bus.Conn.Publish(m.Reply, data)
	}
	if err != nil {
		w.log.Warn("an operator could not be answered", "verb", verb, "error", err)
	}
}

func (w *worker) carryOut(ctx context.Context, shard int, verb proto.RepoVerb, question []byte) ([]proto.RepoStatus, error) {
	var q proto.RepoQuery
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, fmt.Errorf("the question is no JSON: %w", err)
	}
	if verb == proto.RepoList {
		return w.listRepos(ctx, shard, q.Ref)
	}
	ref, err := nostr.ParseRepoRef(q.Ref)
	if err != nil {
		return nil, err
	}
	repo, err := w.store.Repo(ref)
	switch {
	case err != nil:
		return nil, err
	case proto.ShardOf(ref.Identifier) != shard:
		return nil, fmt.Errorf("shard %d does not have %s", shard, readable(ref))
	case !repo.Exists():
		return nil, fmt.Errorf("nothing of %s is here", readable(ref))
	}
	act := map[proto.RepoVerb]func(context.Context, *repository.Repo) (proto.RepoStatus, error){
		proto.RepoShow: w.showRepo, proto.RepoRestore: w.restoreRepo, proto.RepoRemove: w.removeNow,
	}[verb]
	status, err := act(ctx, repo)
	if errors.Is(err, errHosted) {
		err = fmt.Errorf("%s is hosted: only its owner can give it up", readable(ref))
	}
	if errors.Is(err, shards.ErrElsewhere) {
		err = fmt.Errorf("%s is being handed over to another worker; ask again", readable(ref))
	}
	if err != nil {
		return nil, err
	}
	return []proto.RepoStatus{status}, nil
}

// listRepos lists the repositories of a shard that are not hosted, those behind after in order.
func (w *worker) listRepos(ctx context.Context, shard int, after string) (list []proto.RepoStatus, err error) {
	for at, err := range w.store.Places(ctx, nostr.RepoRef{}) {
		if err != nil {
			return nil, err
		}
		ref := at.RepoRef
		if at.PRs || proto.ShardOf(ref.Identifier) != shard || ref.String() <= after {
			continue
		}
		hosted, err := w.announced(ctx, ref, w.holdings.OfIdentifier(ref.Identifier))
		if err != nil {
			return nil, err
		}
		if hosted {
			continue
		}
		repo, err := w.store.Repo(ref)
		if err != nil {
			return nil, err
		}
		how, err := w.howItEnds(ctx, repo)
		if err != nil {
			return nil, err
		}
		list = append(list, statusOf(ref, how))
	}
	slices.SortFunc(list, func(a, b proto.RepoStatus) int { return cmp.Compare(a.Ref, b.Ref) })
	return list[:min(len(list), listAtOnce)], nil
}

func statusOf(ref nostr.RepoRef, how ending) proto.RepoStatus {
	s := proto.RepoStatus{Ref: ref.String(), Until: how.until}
	if how.note != nil {
		s.Reason, s.Announcement, s.Since, s.Kept = how.note.Reason, how.note.Announcement, how.note.Since, how.note.Kept
	}
	return s
}

// status reads how a repository stands.
func (w *worker) status(ctx context.Context, repo *repository.Repo) (how ending, s proto.RepoStatus, err error) {
	hosted, err := w.announcedNow(ctx, repo.Ref())
	if err != nil {
		return how, s, err
	}
	if !hosted {
		how, err = w.howItEnds(ctx, repo)
		return how, statusOf(repo.Ref(), how), err
	}
	s = proto.RepoStatus{Ref: repo.Ref().String(), Hosted: true}
	_, err = query.Addressable(ctx, w.events, nostr.KindAnnouncement, repo.Ref().PubKey, repo.Ref().Identifier)
	if errors.Is(err, query.ErrNotFound) {
		s.Hosted, s.Held, err = false, true, nil
	}
	return how, s, err
}

// showRepo tells all about a repository.
func (w *worker) showRepo(ctx context.Context, repo *repository.Repo) (proto.RepoStatus, error) {
	_, s, err := w.status(ctx, repo)
	if err != nil {
		return s, err
	}
	refs, err := repo.Refs()
	switch {
	case err != nil && ctx.Err() != nil:
		return s, err
	case err != nil:
		s.Damage = err.Error()
	default:
		s.References = len(refs.ByName)
	}
	if s.Bytes, err = repo.Bytes(); err != nil {
		return s, err
	}
	for other, err := range w.store.Places(ctx, nostr.RepoRef{Identifier: repo.Ref().Identifier}) {
		if err != nil {
			return s, err
		}
		if other != repo.Place() && len(s.Beside) < listAtOnce {
			s.Beside = append(s.Beside, other.String())
		}
	}
	s.Events, s.States, err = w.countEvents(ctx, repo.Ref())
	return s, err
}

func (w *worker) countEvents(ctx context.Context, ref nostr.RepoRef) (naming, states int, err error) {
	filters := append(namingOf(ref), statesOf(ref.Identifier))
	counts := make([]int, len(filters))
	for n, filter := range filters {
		for _, err := range w.events.IDs(ctx, filter) {
			if err != nil {
				return 0, 0, fmt.Errorf("count the events of %s: %w", ref, err)
			}
			counts[n]++
		}
		naming += counts[n]
	}
	states = counts[len(filters)-1]
	return naming - states, states, nil
}

// restoreRepo cancels the removal of a repository: it is kept until its owner comes back, or an
// operator removes it. It is not served: that its owner gave it up is for its owner to take back.
func (w *worker) restoreRepo(ctx context.Context, repo *repository.Repo) (proto.RepoStatus, error) {
	unlock, err := w.shards.Write(ctx, repo.Place())
	if err != nil {
		return proto.RepoStatus{}, err
	}
	defer unlock()
	how, s, err := w.status(ctx, repo)
	if err != nil || how.note == nil {
		return s, err // it is here, or has no end
	}
	how.note.Kept, how.until = true, time.Time{}
	if err := repo.SetEnded(*how.note); err != nil {
		return s, err
	}
	w.log.Info("an operator has cancelled the removal of a repository", "repository", repo.Ref())
	return statusOf(repo.Ref(), how), nil
}

// removeNow removes a repository that is not hosted, and tells what it was.
func (w *worker) removeNow(ctx context.Context, repo *repository.Repo) (proto.RepoStatus, error) {
	status, err := w.showRepo(ctx, repo)
	if err != nil {
		return status, err
	}
	unlock, err := w.shards.Write(ctx, repo.Place())
	if err != nil {
		return status, err
	}
	defer unlock()
	if err := w.remove(ctx, repo, true); err != nil {
		return status, err
	}
	w.log.Info("an operator has removed a repository", "repository", repo.Ref())
	return status, nil
}

// readable is how people write a repository.
func readable(ref nostr.RepoRef) string {
	return npub(ref.PubKey) + "/" + strings.ToValidUTF8(ref.Identifier, "?")
}
