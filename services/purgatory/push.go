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

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
)

// releaseTime bounds releasing what a push satisfied: everything that it brought is walked through.
// The client may have gone meanwhile, the data has not.
const releaseTime = 30 * time.Minute

func (a authority) place(ref nostr.RepoRef) repository.Place {
	return repository.Place{RepoRef: ref, PRs: a.prs}
}

const (
	// maxWaiting bounds the references of a repository that wait for their events, and
	// maxClientWaiting those of them that one client has pushed.
	maxWaiting       = 256
	maxClientWaiting = 64
	// leastUnknown is what a push counts at least that names an event which has not come.
	leastUnknown = 1 << 20
)

// Repository implements githttp.Authority: a repository is here if its announcement is served or
// waits. What this worker has read so far mostly tells; a client that was told of its announcement
// a moment ago may be ahead of it.
func (a authority) Repository(ctx context.Context, ref nostr.RepoRef) (*repository.Repo, error) {
	return a.hosting.repository(ctx, a.place(ref))
}

// repository is a repository if it is here. githttp.ErrNotFound: it is not announced.
func (w *hosting) repository(ctx context.Context, at repository.Place) (*repository.Repo, error) {
	if !w.shards.Holds(at.Identifier) {
		return nil, repository.ErrElsewhere
	}
	if ban := w.node.Bans.Repository(at.RepoRef); ban != nil {
		return nil, githttp.Refuse(ban.Message())
	}
	repo, err := w.store.At(at)
	if at.PRs || err != nil {
		return repo, err
	}
	hosted, err := w.Hosts(ctx, at.RepoRef)
	if err == nil && !(hosted && repo.Exists()) {
		err = w.makeRepository(ctx, repo)
	}
	return repo, err
}

// makeRepository makes a repository that is announced but not on disk yet: a client was quicker
// than we, or the disk is a new one. githttp.ErrNotFound: it is not announced.
func (w *hosting) makeRepository(ctx context.Context, repo *repository.Repo) error {
	return repo.WithLock(ctx, func(repo *repository.Locked) error {
		// Looked at again under the lock: it may just have been removed because its announcement is
		// over.
		hosted, err := w.hosts(ctx, repo.RepoRef, true)
		if err == nil && !hosted {
			err = githttp.ErrNotFound
		}
		if err != nil {
			return err
		}
		return ensure(ctx, repo)
	})
}

// ensure makes a repository that is not there.
func ensure(ctx context.Context, repo *repository.Locked) error {
	err := repo.Ensure(ctx)
	if err == nil || ctx.Err() != nil || errors.Is(err, repository.ErrBusy) || errors.Is(err, repository.ErrElsewhere) {
		return err
	}
	return githttp.Unavailable(githttp.Unwritable, err)
}

// Hosts reports whether a repository is here by what its owner has announced. What others announce
// of that identifier is not read: any client may ask.
func (w *hosting) Hosts(ctx context.Context, ref nostr.RepoRef) (bool, error) {
	return w.hosts(ctx, ref, false)
}

// hosts is Hosts, now: after everything is read that there is at this moment. What is held is read
// first, as in read.
func (w *hosting) hosts(ctx context.Context, ref nostr.RepoRef, now bool) (hosts bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	if now {
		err = w.knowledge.holdings.CatchUp(ctx)
	}
	waiting := w.heldAt(ref)
	if now && err == nil {
		err = w.knowledge.events.CatchUp(ctx)
	}
	var have []*nostr.Event
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement}, Authors: []string{ref.PubKey},
		Tags: nostr.TagMap{"d": {ref.Identifier}}}
	for ev, failed := range w.knowledge.events.Query(ctx, filter) {
		have, err = append(have, ev), errors.Join(err, failed)
	}
	if err != nil {
		return false, fmt.Errorf("read the announcement of %s: %w", ref, err)
	}
	hosts = w.knowledge.view(ref.Identifier, have, waiting).Hosts(ref.PubKey)
	if hosts || !w.knowledge.rules.Whitelists() || len(have)+len(waiting) == 0 {
		return hosts, nil
	}
	v, err := w.knowledge.around(ctx, ref.Identifier, []string{ref.PubKey}, nil) // the owner may maintain one that is on the whitelist
	return err == nil && v.Hosts(ref.PubKey), err
}

// heldAt are the held announcements of a repository.
func (w *hosting) heldAt(ref nostr.RepoRef) []*held.Entry {
	return w.knowledge.holdings.At(nostr.Address{Kind: nostr.KindAnnouncement, PubKey: ref.PubKey,
		Identifier: ref.Identifier})
}

// decision is what allows a push.
type decision struct {
	repostate.Decision
	view    repostate.View
	repo    *repository.Repo
	waiting []proto.Held // what it brings the data of
	unknown []string     // ids of events that have not come
	named   []string     // ids of the events for which it names commits
	payer   payer
	bytes   int64 // that count for the payer
}

// decide decides a push by what is known of its identifier and by the references as they are. It
// changes nothing. A *repostate.Refused says why nothing of the push is allowed.
func (a authority) decide(ctx context.Context, push githttp.PushRequest) (d decision, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	if d.view, err = a.knowledge.around(ctx, push.Ref.Identifier, []string{push.Ref.PubKey}, nil); err != nil {
		return d, err
	}
	crowd := a.releaser.Crowd()
	find := func(id string) (*nostr.Event, error) {
		ev, err := release.Find(ctx, a.knowledge, id)
		if err == nil && ev == nil {
			d.unknown = append(d.unknown, id)
			d.bytes = max(push.PackBytes, leastUnknown)
			err = roomFor(nil, push.Client, len(d.unknown))
		} else if entry := a.knowledge.holdings.ByID(id); entry != nil {
			d.waiting = append(d.waiting, entry.Held)
		}
		if err == nil && ev != nil && !a.prs && !d.view.Serves(ev.PubKey) {
			full, failed := crowd.Full(ctx, d.repo, ev.PubKey)
			if err = failed; full {
				err = release.TooMany(ev.PubKey)
			}
		}
		return ev, err
	}
	d.repo, err = a.store.At(a.place(push.Ref))
	var pulls []string
	for _, c := range push.Changes {
		if id, is := strings.CutPrefix(c.Name, repostate.PrefixNostr); is && nostr.IsHex64(id) {
			pulls, d.named = append(pulls, c.Name), append(d.named, id)
		}
	}
	var refs repository.Refs
	if err == nil && d.repo.Exists() {
		refs, err = d.repo.BranchesAndTags(pulls...)
	}
	p := repostate.Push{Owner: push.Ref.PubKey, Refs: refs.ByName, Changes: push.Changes, Event: find}
	p.Repos = func(pr *nostr.PullRequest) ([]nostr.RepoRef, error) { return a.knowledge.Repos(ctx, pr) }
	switch {
	case err != nil:
	case a.prs:
		d.Decision, err = d.view.AuthoriseContributions(p)
	default:
		d.Decision, err = d.view.Authorise(p)
	}
	if err == nil && len(d.unknown) > 0 && d.repo.Exists() {
		err = d.keepFirst(push.Client, refs.ByName)
	}
	err = cmp.Or(err, d.Err(push.Atomic))
	d.payer.client, d.bytes = cmp.Or(push.Client, "unknown"), max(d.bytes, push.PackBytes)
	if len(d.waiting) > 0 {
		d.payer.author = d.waiting[0].Event.PubKey
	}
	if d.State != nil {
		d.payer.author = push.Ref.PubKey // who has invited the author of the state
	}
	if d.State != nil && d.State.Held {
		d.waiting = append(d.waiting, proto.Held{Event: d.State.Event, Identifier: push.Ref.Identifier})
	}
	d.payer.served = d.view.Serves(d.payer.author)
	return d, err
}

// keepFirst refuses to move references that wait for their events, unless the client has pushed them:
// anybody may push under any name, and who came first was told that the push is done.
func (d *decision) keepFirst(client string, refs map[string]string) error {
	waiting, err := d.repo.Waiting()
	for _, w := range waiting {
		name := repostate.PrefixNostr + w.Event
		of := func(c repostate.Change) bool { return c.Name == name }
		if refs[name] == "" || w.Client == client || !slices.Contains(d.unknown, w.Event) ||
			!slices.ContainsFunc(d.Allowed, of) {
			continue
		}
		d.Allowed = slices.DeleteFunc(d.Allowed, of)
		d.unknown = slices.DeleteFunc(d.unknown, func(id string) bool { return id == w.Event })
		d.Refused[name] = fmt.Sprintf("another client has pushed another commit as %s, whose event has not come: "+
			"publish the event, then push again", name)
	}
	return err
}

// Authorize implements githttp.Authority. It takes no lock, for the answer may be out of date by
// the time the pack is here either way, and Push decides again under the lock.
func (a authority) Authorize(ctx context.Context, push githttp.PushRequest) error {
	_, err := a.allow(ctx, push)
	return a.notices.refusal(a.place(push.Ref), err)
}

// allow decides a push, sees that there is room for it, and restarts the clocks of what it uses,
// which may take long to come.
func (a authority) allow(ctx context.Context, push githttp.PushRequest) (d decision, err error) {
	if err := cmp.Or(a.node.Bus.Full(), a.store.Writable()); err != nil {
		return d, githttp.Unavailable(githttp.Unwritable, err)
	}
	ctx, stop := a.node.Bus.WhileWritable(ctx) // with a full disk no clock is restarted
	defer stop()
	if ban := a.node.Bans.Repository(push.Ref); ban != nil {
		return d, &repostate.Refused{Reason: ban.Message()}
	}
	d, err = a.decide(ctx, push)
	if err == nil && len(d.Allowed) > 0 {
		_, err = a.budget.check(ctx, d.payer, d.bytes)
	}
	if err == nil {
		err = a.keep(ctx, push.Ref, d)
	}
	return d, err
}

// keep restarts the clocks of what a push uses: the state, and the owner's announcement, unless
// nothing is known of the events that the push is for. Where ingest can store nothing it does not
// answer, as with a NATS server whose disk is full; then nothing is pushed.
func (a authority) keep(ctx context.Context, ref nostr.RepoRef, d decision) error {
	if a.prs || d.State == nil && len(d.waiting) == 0 {
		return nil
	}
	var used []*nostr.Event
	for _, e := range a.hosting.heldAt(ref) {
		used = append(used, e.Event)
	}
	if d.State != nil && d.State.Held {
		used = append(used, d.State.Event)
	}
	bounded, cancel := context.WithTimeout(ctx, a.constants.Answer)
	defer cancel()
	_, err := release.Ask(bounded, a.sender, proto.ActionExtend, "", used...)
	if err != nil && ctx.Err() == nil {
		return githttp.Unavailable(githttp.Unwritable, fmt.Errorf("have ingest restart the clocks of what is pushed: %w", err))
	}
	return err
}

// Push implements githttp.Authority: it authorises, restarts the clocks of what the push uses,
// receives, and releases what is complete in that repository then. It returns when that is served.
// Other repositories of the maintainers follow.
func (a authority) Push(ctx context.Context, push githttp.PushRequest, receive githttp.Receive) (githttp.Refusals,
	error) {
	at := a.place(push.Ref)
	repo, err := a.store.At(at)
	if err != nil {
		return nil, err
	}
	// Anybody may push what moves no branch or tag. What does without a state is refused at once, when
	// it holds the lock.
	stranger := !slices.ContainsFunc(push.Changes, func(c repostate.Change) bool { return !namesPullRequest(c) })
	into, err := repo.LockFor(ctx, push.Client, stranger)
	if err != nil {
		return nil, err
	}
	defer into.Done()
	refused, err := a.take(ctx, into, push, receive)
	return refused, a.notices.refusal(at, err)
}

func namesPullRequest(c repostate.Change) bool {
	return strings.HasPrefix(c.Name, repostate.PrefixNostr)
}

// take is Push under the lock. The references are read again: what the client wants may have been
// done since it saw them.
func (a authority) take(ctx context.Context, repo *repository.Locked, push githttp.PushRequest,
	receive githttp.Receive) (githttp.Refusals, error) {
	at := repo.Place
	d, err := a.allow(ctx, push)
	if err != nil {
		return nil, err
	}
	refused := githttp.Refusals(d.Refused)
	if len(d.Allowed) > 0 {
		ofGit, err := a.receive(ctx, repo, push, d, receive)
		if err != nil {
			return nil, err
		}
		maps.Copy(refused, ofGit)
		if len(ofGit) > 0 {
			d.waiting = nil // their data may not be whole
		}
	}
	if len(d.Allowed)+len(d.waiting) > 0 {
		during, end := repo.During(context.WithoutCancel(ctx))
		defer end()
		// With a full disk nothing is decided, and the process begins again: what was pushed is looked
		// at then.
		during, stop := a.node.Bus.WhileWritable(during)
		defer stop()
		err := a.releasePushed(during, repo, d)
		if full := a.node.Bus.Full(); err != nil && full != nil {
			return nil, githttp.Unavailable(githttp.Unwritable, full)
		}
		if err != nil {
			return nil, err
		}
	}
	var objects []string
	for _, change := range push.Changes {
		if change.New != "" && refused[change.Name] == "" {
			objects = append(objects, change.New)
		}
	}
	a.notices.tell(at.Identifier, proto.GitPushed, proto.GitNotice{Owner: nostr.Npub(at.PubKey), Objects: some(objects)})
	a.log.Info("pushed", "client", push.Client, "repository", at, "references", named(push.Changes), "event", d.eventID(),
		"done already", len(d.Done), "refused", len(refused))
	return refused, nil
}

// named are the references of a push, for the log: a client may push 10,000.
func named(changes []repostate.Change) string {
	var names []string
	for _, c := range changes[:min(len(changes), someObjects)] {
		names = append(names, c.Name)
	}
	if more := len(changes) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, " ")
}

// eventID is the state event that allows a push; empty where it needs none.
func (d decision) eventID() string {
	if d.State == nil {
		return ""
	}
	return d.State.Event.ID
}

// receive lets git carry out what is allowed, and gives what git refuses of it.
func (a authority) receive(ctx context.Context, repo *repository.Locked, push githttp.PushRequest, d decision,
	receive githttp.Receive) (githttp.Refusals, error) {
	err := ensure(ctx, repo) // it may have been removed and announced again since the request came in
	if err == nil {
		err = noteWaiting(repo, push.Client, d.unknown)
	}
	if err != nil {
		return nil, err
	}
	before, err := d.repo.Bytes()
	if err == nil {
		err = a.budget.take(d.payer, d.bytes)
	}
	if err != nil {
		return nil, err
	}
	// The client may go in the middle of it: what was moved is brought in line in any case.
	defer func() { a.schedule.queue.addRepository(repo.Place, time.Now(), maintainerGroup) }()
	ofGit, err := receive(ctx, repo, d.Allowed)
	// What counts is by how much the repository grew: a pack may be completed by objects that are
	// here, and of a push that is refused nothing stays.
	stored := int64(0)
	if err == nil && len(ofGit) < len(d.Allowed) {
		after, _ := d.repo.Bytes()
		stored = max(d.bytes, after-before)
	}
	a.budget.spend(d.payer, stored-d.bytes)
	return ofGit, err
}

// noteWaiting notes durably who pushes references whose events have not come, before these are
// there. A *repostate.Refused says that there is no room for them.
func noteWaiting(repo *repository.Locked, client string, events []string) error {
	if len(events) == 0 {
		return nil
	}
	waiting, err := repo.Waiting()
	if err != nil {
		return err
	}
	waiting = slices.DeleteFunc(waiting, func(w repository.WaitingPush) bool { return slices.Contains(events, w.Event) })
	if err := roomFor(waiting, client, len(events)); err != nil {
		return err
	}
	for _, event := range events {
		waiting = append(waiting, repository.WaitingPush{Event: event, Client: client})
	}
	return repo.SetWaiting(waiting)
}

// roomFor reports whether so many references of a client may wait for their events beside those
// that wait.
func roomFor(waiting []repository.WaitingPush, client string, more int) error {
	all, clients := len(waiting)+more, more
	for _, w := range waiting {
		if w.Client == client {
			clients++
		}
	}
	if clients <= maxClientWaiting && all <= maxWaiting {
		return nil
	}
	return &repostate.Refused{Reason: fmt.Sprintf("pushed without its event: at most %d references of this repository may wait for their events, and %d of one address; "+
		"publish the pull request's event first, then push: what has its event is not counted", maxWaiting, maxClientWaiting)}
}

// refusal tells the bus that a push is not allowed, and returns what its user is told.
func (w *notices) refusal(at repository.Place, err error) error {
	refused, ok := errors.AsType[*repostate.Refused](err)
	if !ok {
		return err
	}
	w.tell(at.Identifier, proto.GitRefused, proto.GitNotice{Owner: nostr.Npub(at.PubKey), Reason: refused.Reason})
	return githttp.Refuse(refused.Reason)
}

// releaseElsewhere releases a pull request that is held under another identifier, maybe another
// worker's: its commit stands in a repository that it names, or in which its author offers it, and
// that is all that it waits for. Where it names the repository of another owner, that of the same
// identifier takes the commit from here.
func (a authority) releaseElsewhere(ctx context.Context, at repository.Place, e proto.Held) error {
	pr, err := nostr.ParsePullRequest(e.Event)
	if err == nil {
		pr.Repos, err = a.knowledge.Repos(ctx, pr)
	}
	if err != nil {
		return fmt.Errorf("read what a pushed pull request is for: %w", err)
	}
	if !at.PRs && !slices.Contains(pr.Repos, at.RepoRef) {
		a.schedule.queue.addIdentifier(at.Identifier, time.Now(), e.Event.ID)
		return nil
	}
	verdicts, err := release.Ask(ctx, a.sender, proto.ActionRelease, "", e.Event)
	if err != nil {
		return err
	}
	return a.knowledge.events.Reached(ctx, verdicts[0].Seq)
}

// releasePushed releases what a push satisfied, and says whether the events that it brings the data
// of are served then. A pull request may be held still, until other repositories that it is for
// have the commit.
func (a authority) releasePushed(ctx context.Context, repo *repository.Locked, d decision) error {
	at := repo.Place
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	_, failed := a.reconciler.release(ctx, d.view, []*repository.Locked{repo}, release.Look{Events: d.named})
	if failed != nil {
		a.log.Warn("not all events of a push could be released", "repository", at, "error", failed)
	}
	for _, e := range d.waiting {
		if e.Identifier != at.Identifier {
			if err := a.releaseElsewhere(ctx, at, e); err != nil {
				return err
			}
		}
		served, err := a.knowledge.Accepted(ctx, e.Event.ID)
		switch {
		case err != nil:
			return err
		case served == nil && failed != nil:
			return failed
		case served == nil && (e.Event.Kind == nostr.KindState || a.knowledge.Held(e.Event.ID) == nil):
			return githttp.Refuse(fmt.Sprintf("the event %s that this push is for is no longer pending: rejected, deleted, "+
				"expired or superseded", e.Event.ID))
		}
	}
	if len(d.waiting) > 0 {
		return nil
	}
	return failed
}
