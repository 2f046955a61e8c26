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
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

const (
	// listAtOnce bounds the repositories of one page of a list.
	listAtOnce = 200
	// askedTime bounds what is done for one question of an operator.
	askedTime = 5 * time.Minute
)

// answerOperators answers what operators ask about the repositories of the worker's shards, until ctx
// ends: of each kind of question one after the other.
func (w *worker) answerOperators(ctx context.Context) error {
	for _, verb := range proto.RepoVerbs() {
		sub, err := w.node.Bus.Conn.Subscribe(proto.RepoSubject(verb), func(m *nats.Msg) { w.answer(ctx, verb, m) })
		if err != nil {
			return fmt.Errorf("answer operators: %w", err)
		}
		defer func() { _ = sub.Unsubscribe() }() // it fails only where the connection has ended
	}
	<-ctx.Done()
	return nil
}

func (w *worker) answer(ctx context.Context, verb proto.RepoVerb, m *nats.Msg) {
	if verb == proto.RepoList {
		w.listRepos(m)
		return
	}
	var q proto.RepoQuery
	err := json.Unmarshal(m.Data, &q)
	ref, malformed := nostr.ParseRepoRef(q.Ref)
	if err = errors.Join(err, malformed); err == nil && !w.shards.Holds(ref.Identifier) {
		return // another worker's
	}
	var answer proto.RepoAnswer
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, askedTime)
		defer cancel()
		var status proto.RepoStatus
		status, err = w.carryOut(ctx, verb, ref)
		answer.Repos = []proto.RepoStatus{status}
	}
	if err != nil {
		answer = proto.RepoAnswer{Error: err.Error()}
	}
	w.reply(m, answer)
}

func (w *worker) reply(m *nats.Msg, answer proto.RepoAnswer) {
	if _, err := proto.ParseRepoAnswerSubject(m.Reply); err != nil {
		return // it is no operator's inbox
	}
	data, err := json.Marshal(answer)
	if err == nil {
		err = w.node.Bus.Conn.Publish(m.Reply, data)
	}
	if err != nil {
		w.log.Warn("an operator could not be answered", "subject", m.Subject, "error", err)
	}
}

// listRepos lists all repositories of the worker's shards as they were when it last looked at them.
func (w *worker) listRepos(m *nats.Msg) {
	var page []proto.RepoStatus
	for _, s := range w.statuses.Range {
		if page = append(page, s.(proto.RepoStatus)); len(page) == listAtOnce {
			w.reply(m, proto.RepoAnswer{Repos: page})
			page = nil
		}
	}
	w.reply(m, proto.RepoAnswer{Repos: page, Shards: w.shards.Count()})
}

// countRepos counts them, for `tendril status`.
func (w *worker) countRepos(figures map[string]int64) {
	for _, s := range w.statuses.Range {
		figures["repositories_"+string(s.(proto.RepoStatus).State)]++
	}
}

func (w *worker) carryOut(ctx context.Context, verb proto.RepoVerb, ref nostr.RepoRef) (s proto.RepoStatus, err error) {
	repo, err := w.store.Repo(ref)
	if err == nil && !repo.Exists() {
		err = fmt.Errorf("nothing of %s is here", readable(ref))
	}
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
		err = fmt.Errorf("%s is being handed over to another worker; ask again", readable(ref))
	}
	return s, err
}

// status reads how a repository stands.
func (w *worker) status(ctx context.Context, repo *repository.Repo, hosted bool) (s proto.RepoStatus, how ending, err error) {
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
	for _, e := range w.heldAt(repo.RepoRef) {
		if hosted {
			s.State, s.Since, s.Until = proto.RepoHeld, e.HeldAt, e.ExpiresAt
		}
	}
	refs, err := repo.Refs()
	if s.References = len(refs.ByName); s.References > 0 {
		s.Changed, err = repo.Moved()
	}
	if err != nil {
		s.Damage = err.Error()
	}
	s.Bytes, err = repo.Bytes()
	return s, how, err
}

// showRepo tells all about a repository.
func (w *worker) showRepo(ctx context.Context, repo *repository.Repo) (s proto.RepoStatus, err error) {
	hosted, err := w.hosts(ctx, repo.RepoRef, true)
	if err == nil {
		s, _, err = w.status(ctx, repo, hosted)
	}
	if err != nil {
		return s, err
	}
	for other, err := range w.store.Places(ctx, nostr.RepoRef{Identifier: repo.Identifier}) {
		if err != nil {
			return s, err
		}
		if other != repo.Place && len(s.Beside) < listAtOnce {
			s.Beside = append(s.Beside, other.String())
		}
	}
	s.Waits = w.waits(ctx, repo.RepoRef)
	s.Events, err = w.count(ctx, namingOf(repo.RepoRef)...)
	if err == nil {
		s.States, err = w.count(ctx, statesOf(repo.Identifier))
	}
	return s, err
}

// restoreRepo cancels the removal of a repository: it is kept until its owner comes back, or an
// operator removes it. It is not served: that its owner gave it up is for its owner to take back.
func (w *worker) restoreRepo(ctx context.Context, repo *repository.Locked) (s proto.RepoStatus, err error) {
	hosted, err := w.hosts(ctx, repo.RepoRef, true)
	if err != nil {
		return s, err
	}
	s, how, err := w.status(ctx, repo.Repo, hosted)
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
func (w *worker) removeNow(ctx context.Context, repo *repository.Locked) (proto.RepoStatus, error) {
	status, err := w.showRepo(ctx, repo.Repo)
	if err != nil {
		return status, err
	}
	if err := w.remove(ctx, repo, true); err != nil {
		return status, err
	}
	w.log.Info("an operator has removed a repository", "repository", repo.RepoRef)
	return status, nil
}

// readable is how people write a repository.
func readable(ref nostr.RepoRef) string {
	return npub(ref.PubKey) + "/" + strings.ToValidUTF8(ref.Identifier, "?")
}
