package purgatory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/dossier"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
)

// changed hears of every change among the held events. It must be quick.
func (w *worker) changed(c held.Change) {
	if c.Entry != nil {
		w.awaited(c.Entry.Event.ID)
	}
	if !w.shards.Holds(c.Identifier()) {
		return
	}
	waited := c.Before != nil && c.Before.Phase == proto.PhaseWaiting
	if c.Entry != nil && c.Entry.Phase == proto.PhaseWaiting {
		// An entry that is written again, with another clock, is no new event.
		if !waited || c.Before.Event.ID != c.Entry.Event.ID {
			w.hunter.Add(c.Identifier(), w.huntDelay(c.Entry.Source))
		}
		if c.Entry.Event.Kind == nostr.KindAnnouncement && !waited {
			w.pulls.recheck(c.Identifier()) // its repository is new; no mere restart of its clock
			w.orphans.add(nostr.RepoRef{PubKey: c.Entry.Event.PubKey, Identifier: c.Identifier()})
		}
	}
	if c.Before != nil && c.Before.Event.Kind == nostr.KindAnnouncement && (c.Entry == nil || c.Entry.Phase == proto.PhaseSilent) {
		w.orphans.add(nostr.RepoRef{PubKey: c.Before.Event.PubKey, Identifier: c.Identifier()})
	}
	w.due.add(c.Identifier())
}

// huntDelay is how long the hunt for the data of a new event waits: for a push by the user, or for
// more of what a relay sends.
func (w *worker) huntDelay(source proto.Source) time.Duration {
	if source == proto.SourceUser {
		return w.node.Settings.HuntUserDelay
	}
	return w.node.Settings.HuntSyncDelay
}

// heard hears of newly accepted events: an announcement may let others' states and pull requests
// count, and may end the hosting of a repository or begin it again, a pull request may be for
// repositories of several identifiers.
func (w *worker) heard(recs []eventdb.Record) {
	for _, r := range recs {
		w.awaited(r.Event.ID)
		switch r.Event.Kind {
		case nostr.KindAnnouncement:
			if identifier := r.Event.Tags.GetD(); w.shards.Holds(identifier) {
				w.pulls.recheck(identifier)
				w.orphans.add(nostr.RepoRef{PubKey: r.Event.PubKey, Identifier: identifier})
				w.due.add(identifier)
			}
		case nostr.KindPR, nostr.KindPRUpdate:
			w.heardPull(r.Event)
		case nostr.KindDeletion:
			w.heardDeletion(r.Event)
			w.heardWithdrawal(r.Event)
			w.leavers.add(r.Event.PubKey)
		}
	}
}

// dossier gathers what is known of an identifier at this moment. What is held is brought up to date
// and read before what is accepted: an event that leaves purgatory while we look is seen in at
// least one of the two.
func (w *worker) dossier(ctx context.Context, identifier string) (dossier.Dossier, []*held.Entry, error) {
	if err := w.readHeld(ctx); err != nil {
		return dossier.Dossier{}, nil, err
	}
	entries := w.holdings.OfIdentifier(identifier)
	if err := w.readAccepted(ctx); err != nil {
		return dossier.Dossier{}, nil, err
	}
	d, err := w.known(ctx, identifier, entries)
	return d, entries, err
}

// readHeld waits until everything is read that is held now.
func (w *worker) readHeld(ctx context.Context) error {
	if err := w.heldHead.Read(ctx); err != nil {
		return fmt.Errorf("read what is held: %w", err)
	}
	return nil
}

// readAccepted waits until everything is read that is accepted now.
func (w *worker) readAccepted(ctx context.Context) error {
	if err := w.events.CatchUp(ctx); err != nil {
		return fmt.Errorf("read what is accepted: %w", err)
	}
	return nil
}

// known is the dossier from what this worker has read so far.
func (w *worker) known(ctx context.Context, identifier string, entries []*held.Entry) (dossier.Dossier, error) {
	held := make([]proto.Held, len(entries))
	for i, e := range entries {
		held[i] = e.Held
	}
	have, err := acceptedOf(ctx, w.events, identifier)
	if err != nil {
		return dossier.Dossier{}, err
	}
	owed, withdrawn := w.pulls.owed(identifier, time.Now(), w.node.Settings.HoldDuration)
	for _, id := range owed {
		ev, err := query.Event(ctx, w.events, id)
		if err == nil {
			have = append(have, ev)
		} else if !errors.Is(err, query.ErrNotFound) {
			return dossier.Dossier{}, fmt.Errorf("read pull request %s: %w", id, err)
		}
	}
	d := dossier.New(identifier, w.rules, have, held)
	d.Withdrawn = withdrawn
	elsewhere := others{worker: w, by: map[string]dossier.Dossier{}}
	for i, pr := range d.PullRequests {
		whole := *pr.PullRequest
		if whole.Repos, err = reposOf(ctx, w.events, pr.Event); err != nil {
			return dossier.Dossier{}, err
		}
		d.PullRequests[i].PullRequest = &whole
		if d.PullRequests[i].Elsewhere, err = elsewhere.hosted(ctx, identifier, &whole); err != nil {
			return dossier.Dossier{}, err
		}
	}
	return d, nil
}

// acceptedOf are the accepted announcements and states of an identifier.
func acceptedOf(ctx context.Context, from events, identifier string) (have []*nostr.Event, err error) {
	filter := nostr.Filter{Kinds: []int{nostr.KindAnnouncement, nostr.KindState}, Tags: nostr.TagMap{"d": {identifier}}}
	for ev, err := range from.Query(ctx, filter) {
		if err != nil {
			return nil, fmt.Errorf("read what is accepted of %q: %w", identifier, err)
		}
		have = append(have, ev)
	}
	return have, nil
}

// lookTime bounds the look-up of an accepted event: while nobody answers, whoever wants to know is
// told so.
const lookTime = 10 * time.Second

// accepted returns an accepted event, or nil.
func (w *worker) accepted(id string) (*nostr.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	ev, err := query.Event(ctx, w.events, id)
	if errors.Is(err, query.ErrNotFound) {
		return nil, nil
	}
	return ev, err
}

// seek tells the hunter what an identifier misses and where that may be.
func (w *worker) seek(ctx context.Context, d dossier.Dossier) {
	var wants []dossier.Want
	for _, want := range d.Wants() {
		missing, err := w.missing(ctx, d.Identifier, want)
		if err != nil && ctx.Err() == nil {
			w.log.Error("missing objects could not be looked for", "identifier", d.Identifier, "owner", want.Owner, "error", err)
		}
		if len(missing) > 0 {
			want.Objects = missing
			wants = append(wants, want)
		}
	}
	if ctx.Err() == nil {
		w.hunter.Seek(d.Identifier, wants, d.Sources())
	}
}

func (w *worker) missing(ctx context.Context, identifier string, want dossier.Want) ([]string, error) {
	repo, err := w.store.Repo(nostr.RepoRef{PubKey: want.Owner, Identifier: identifier})
	if err != nil {
		return nil, err
	}
	return repo.Missing(ctx, want.Objects)
}

// tidy asks for housekeeping where something may have come.
func (w *worker) tidy(d dossier.Dossier) {
	for _, owner := range d.Hosted() {
		w.chores.ask(repository.Place{RepoRef: nostr.RepoRef{PubKey: owner, Identifier: d.Identifier}})
	}
}

// settle looks after repositories that may not be hosted any more, releases what is complete, waits
// until that is served, and tells about it. It gives the dossier as it is then, beside an error
// too, unless nothing could be read. The caller has the identifier's lock.
func (w *worker) settle(ctx context.Context, identifier string) (dossier.Dossier, error) {
	suspects := w.orphans.take(identifier)
	d, entries, err := w.dossier(ctx, identifier)
	if err != nil {
		w.orphans.add(suspects...)
		return dossier.Dossier{}, err
	}
	if err := w.clear(ctx, d, suspects); err != nil {
		w.log.Error("whether a repository is still hosted could not be decided", "error", err)
		w.due.addAt(identifier, time.Now().Add(w.node.Settings.HuntBackoffBase))
	}
	looked, err := w.lookForOwed(ctx, d)
	if err == nil && looked {
		d, err = w.known(ctx, identifier, entries)
	}
	if err != nil {
		return dossier.Dossier{}, err
	}
	d.Contributors = w.contributors.take(d, time.Now())
	settled, failed := w.releaser.Settle(ctx, d)
	w.contributors.later(identifier, settled.Restless)
	if len(settled.Owed) > 0 {
		w.hunter.Ensure(identifier, w.node.Settings.HuntSyncDelay)
	}
	if failed == nil {
		w.pulls.settled(d, settled.Owed)
	}
	if !settled.Again.IsZero() {
		w.due.addAt(identifier, settled.Again)
	}
	for _, u := range settled.Unfit {
		w.tell(identifier, proto.GitUnfit, proto.GitNotice{Owner: npub(u.Owner), Event: u.State.ID, Kind: u.State.Kind, Reason: u.Err.Error()})
	}
	if err := w.events.Reached(ctx, settled.Seq); err != nil {
		return d, errors.Join(failed, err)
	}
	since := map[string]time.Time{}
	for _, e := range entries {
		since[e.Event.ID] = e.HeldAt
	}
	var served, gone []string
	for _, ev := range settled.Released {
		served = append(served, ev.ID)
		w.metrics.left(ev.Kind, "released", since[ev.ID])
		w.tell(identifier, proto.GitReleased, proto.GitNotice{Event: ev.ID, Kind: ev.Kind})
		w.log.Info("released", "identifier", identifier, "kind", ev.Kind, "event", ev.ID, "waited", time.Since(since[ev.ID]).Round(time.Millisecond))
	}
	for _, ev := range settled.Expired {
		gone = append(gone, ev.ID)
		w.metrics.left(ev.Kind, release.Superseded, since[ev.ID])
		w.tell(identifier, proto.GitExpired, proto.GitNotice{Event: ev.ID, Kind: ev.Kind, Reason: release.Superseded})
	}
	return d.Accepting(served...).Without(gone...), failed
}

// clear looks after repositories that may not be hosted any more, or may be hosted again. Those
// that never got any data go at once, with their held announcements: silent, expired, deleted, or
// not listing us any more.
func (w *worker) clear(ctx context.Context, d dossier.Dossier, suspects []nostr.RepoRef) error {
	for i, ref := range suspects {
		if err := w.clearOne(ctx, d, ref); err != nil {
			w.orphans.add(suspects[i:]...)
			return fmt.Errorf("%s: %w", ref, err)
		}
	}
	return nil
}

// settlers is how many identifiers are settled at once; git processes have a bound of their own.
const settlers = 4

// settleDue settles the identifiers in the queue until ctx ends.
func (w *worker) settleDue(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range settlers {
		group.Go(func() error {
			for {
				identifier, ok := w.due.next(ctx)
				if !ok {
					return nil
				}
				w.takeTurn(ctx, identifier)
				w.due.done(identifier)
			}
		})
	}
	return group.Wait()
}

func (w *worker) takeTurn(ctx context.Context, identifier string) {
	hunted := w.hunter.Wanted(identifier)
	unlock, err := w.shards.Write(ctx, all(identifier))
	if err != nil {
		return // another's now, or we are stopping
	}
	defer unlock()
	d, err := w.settle(ctx, identifier)
	if d.Identifier != "" { // what went wrong is with some repositories; the hunt goes on for the others
		if hunted {
			w.seek(ctx, d)
		}
		w.hunter.Remind(identifier)
	}
	w.tidy(d)
	if err != nil {
		w.unsettled(ctx, identifier, err)
	}
}

// unsettled sees to it that an identifier is settled later. While the bus is away that is no news
// of any one of them.
func (w *worker) unsettled(ctx context.Context, identifier string, err error) {
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelError
	if !w.node.Bus.Conn.IsConnected() {
		level = slog.LevelDebug
	}
	w.log.Log(ctx, level, "events that wait for git data could not be processed", "identifier", identifier, "error", err)
	w.due.addAt(identifier, time.Now().Add(w.node.Settings.HuntBackoffBase))
}
