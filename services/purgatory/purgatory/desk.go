package purgatory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/grace"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/shards"
)

const (
	// listAtOnce bounds the repositories of one answer.
	listAtOnce = 200
	// askedTime bounds what is done for one question of an operator.
	askedTime = 5 * time.Minute
)

// openDesk answers what operators ask about the repositories of a shard, one question after the
// other, until ctx ends or stop is called.
func (w *worker) openDesk(ctx context.Context, shard int) (stop func()) {
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
		return // nobody that we may answer
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
		var list []proto.RepoStatus
		for _, e := range w.endings.Shard(shard, q.Ref, listAtOnce) {
			list = append(list, statusOf(e))
		}
		return list, nil
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

func statusOf(e grace.Entry) proto.RepoStatus {
	s := proto.RepoStatus{Ref: e.Ref.String(), Until: e.Until}
	if e.Note != nil {
		s.Reason, s.Announcement, s.Since, s.Kept = e.Note.Reason, e.Note.Announcement, e.Note.Since, e.Note.Kept
	}
	return s
}

// entry reads how a repository stands that may not be hosted.
func (w *worker) entry(ctx context.Context, repo *repository.Repo) (e grace.Entry, hosted bool, err error) {
	e.Ref = repo.Ref()
	if hosted, err = w.announcedNow(ctx, e.Ref); hosted || err != nil {
		return e, hosted, err
	}
	ending, err := w.ending(ctx, e.Ref)
	if err != nil {
		return e, false, err
	}
	note, err := repo.Ended()
	if err != nil {
		return e, false, err
	}
	now := time.Now()
	step, until := grace.Decide(ending, note, w.node.Settings.DeletionGrace, now)
	e.Until = until
	if step == grace.Note {
		note = &repository.Ended{Announcement: ending.Announcement, Reason: ending.Reason, Since: now.UTC()}
	}
	if (ending != grace.Ending{}) {
		e.Note = note
	}
	return e, false, nil
}

// showRepo tells all about a repository.
func (w *worker) showRepo(ctx context.Context, repo *repository.Repo) (proto.RepoStatus, error) {
	e, hosted, err := w.entry(ctx, repo)
	if err != nil {
		return proto.RepoStatus{}, err
	}
	s := statusOf(e)
	s.Hosted = hosted
	refs, err := repo.Refs(ctx)
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
	beside, err := w.store.Beside(repo.Ref().Identifier)
	if err != nil {
		return s, err
	}
	for _, other := range beside[:min(len(beside), listAtOnce)] {
		if other != repo.Place() {
			s.Beside = append(s.Beside, other.String())
		}
	}
	s.Events, s.States, err = w.countEvents(ctx, e.Ref)
	return s, err
}

func (w *worker) countEvents(ctx context.Context, ref nostr.RepoRef) (naming, states int, err error) {
	filters := append(namingOf(ref), statesOf(ref.Identifier))
	for found, err := range w.events.IDs(ctx, filters...) {
		switch {
		case err != nil:
			return 0, 0, fmt.Errorf("count the events of %s: %w", ref, err)
		case found.Filter == len(filters)-1:
			states++
		default:
			naming++
		}
	}
	return naming, states, nil
}

// restoreRepo cancels the removal of a repository: it is kept until its owner comes back, or an
// operator removes it. It is not served: that its owner gave it up is for its owner to take back.
func (w *worker) restoreRepo(ctx context.Context, repo *repository.Repo) (proto.RepoStatus, error) {
	unlock, err := w.shards.Write(ctx, all(repo.Ref().Identifier))
	if err != nil {
		return proto.RepoStatus{}, err
	}
	defer unlock()
	e, hosted, err := w.entry(ctx, repo)
	switch {
	case err != nil:
		return proto.RepoStatus{}, err
	case hosted:
		return proto.RepoStatus{Ref: e.Ref.String(), Hosted: true}, nil
	case e.Note == nil:
		return statusOf(e), nil // it has no end
	}
	note := *e.Note
	note.Kept = true
	if err := repo.SetEnded(note); err != nil {
		return proto.RepoStatus{}, err
	}
	e.Note, e.Until = &note, time.Time{}
	w.endings.Set(e, time.Time{})
	w.log.Info("an operator has cancelled the removal of a repository", "repository", e.Ref)
	return statusOf(e), nil
}

// removeNow removes a repository that is not hosted, and tells what it was.
func (w *worker) removeNow(ctx context.Context, repo *repository.Repo) (proto.RepoStatus, error) {
	status, err := w.showRepo(ctx, repo)
	if err != nil {
		return status, err
	}
	if err := w.removeOne(ctx, repo.Ref(), true); err != nil {
		return status, err
	}
	w.log.Info("an operator has removed a repository", "repository", repo.Ref())
	return status, nil
}

// readable is how people write a repository.
func readable(ref nostr.RepoRef) string {
	return npub(ref.PubKey) + "/" + strings.ToValidUTF8(ref.Identifier, "?")
}
