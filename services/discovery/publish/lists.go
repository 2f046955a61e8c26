package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unsafe"
	"weak"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

const (
	// fewestListed is how many root events of a repository a change of a target is about at least
	// that names a list of them, if other targets have the repository too. Fewer are told in the
	// change itself: a list is one message more to write, and a question to read it.
	fewestListed = 100
	// listsPause is how long root events are told in the changes themselves after a list could not
	// be written, as on a NATS server whose logins are of an earlier version.
	listsPause = time.Minute
	// listsSum begins the sum of a target that names lists.
	listsSum = "lists:"
)

// lists is what a publisher knows of lists of root events beside what their headers say.
type lists struct {
	known    map[string]list      // by reference: what it has written, or found
	pause    time.Time            // until then none is written
	unwanted map[string]time.Time // since when no target has had the repository
	looked   time.Time            // when that was looked at last

	lookEvery, keep time.Duration
}

// list is what a list is after a message, for as long as a target has these root events.
type list struct {
	at    uint64
	first weak.Pointer[wanted.Short]
	roots int
}

// after returns the root events of the list after that message, if they are known.
func (l list) after(at uint64) (roots []wanted.Short, known bool) {
	switch first := l.first.Value(); {
	case l.at != at:
	case l.roots == 0:
		return nil, true
	case first != nil:
		return unsafe.Slice(first, l.roots), true
	}
	return nil, false
}

// newLists returns those of a publisher that begins. A list that no target has had for keep is
// withdrawn: a replica that is behind by less does not take it from one that has begun to want it.
func newLists() lists {
	return lists{known: map[string]list{}, unwanted: map[string]time.Time{}, lookEvery: 10 * time.Minute, keep: time.Hour}
}

// brought is the list of a repository's root events that was brought up to date.
type brought struct {
	at   uint64         // sequence of its message
	want []wanted.Short // what was wanted of it
	gone []wanted.Short // of these root events that are not accepted any more, so that it does not have them
}

// names reports whether changes name lists.
func names(changes []proto.TargetChange) bool {
	return slices.ContainsFunc(changes, func(c proto.TargetChange) bool {
		return slices.ContainsFunc(c.Repos, func(r proto.RepoChange) bool { return r.RootsAt > 0 })
	})
}

// shared reports whether several targets have a repository.
func (r round) shared(ref string) bool {
	n := 0
	for _, t := range r.wanted {
		if _, has := t.Repos[ref]; has {
			if n++; n > 1 {
				return true
			}
		}
	}
	return false
}

// hasLists reports whether the lists are there that a target may name. The writing of one may have
// ended in the middle, and what was there before is gone by then.
func (p *Publisher) hasLists(t wanted.Target, now round) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ref, r := range t.Repos {
		if list := p.listed[ref]; len(r.Roots) >= fewestListed && (!list.exists() || list.sum == "") && now.shared(ref) {
			return false
		}
	}
	return true
}

// listsFor brings the lists up to date that the change of a target names. What is wanted comes back
// without root events that are not accepted any more.
func (p *Publisher) listsFor(ctx context.Context, from, want wanted.Target, now round) (named target.Lists, left wanted.Target, sent int, err error) {
	if time.Now().Before(p.lists.pause) {
		return nil, want, 0, nil
	}
	gone := map[string][]wanted.Short{}
	for _, ref := range wanted.Large(from, want, fewestListed) {
		if !now.shared(ref) {
			continue
		}
		roots := want.Repos[ref].Roots
		list, n := now.lists[ref], 0
		if list.at == 0 || !wanted.SameList(list.want, roots) {
			list, n, err = p.bringList(ctx, ref, roots, now.asOf)
		}
		sent += n
		switch {
		case err == nil:
			now.lists[ref] = list
			if named == nil {
				named = target.Lists{}
			}
			named[ref] = list.at
			if len(list.gone) > 0 {
				gone[ref] = list.gone
			}
		case errors.Is(err, errUnfit):
		case ctx.Err() != nil, errors.Is(err, ErrOvertaken), errors.Is(err, errLookUp):
			return nil, want, sent, err
		default:
			p.lists.pause = time.Now().Add(listsPause)
			p.log.Warn("the list of a repository's root events could not be published: relays' targets tell them one by one", "repository", ref, "error", err)
			return named, want.WithoutRoots(gone), sent, nil
		}
	}
	return named, want.WithoutRoots(gone), sent, nil
}

// bringList publishes a repository's list.
func (p *Publisher) bringList(ctx context.Context, ref string, want []wanted.Short, asOf uint64) (list brought, sent int, err error) {
	list.want = want
	p.mu.Lock()
	r := p.listed[ref]
	p.mu.Unlock()
	if r.last > asOf && p.lists.known[ref].at != r.last {
		return list, 0, ErrOvertaken
	}
	if r.exists() && r.sum == listSum(want) {
		list.at = p.keepList(ref, r.last, want)
		return list, 0, nil
	}
	changes, left, err := p.listChanges(ctx, ref, want, r)
	if err != nil {
		return list, 0, err
	}
	list.gone = target.Missing(want, left)
	if len(changes) == 0 {
		list.at = p.keepList(ref, r.last, left)
		return list, 0, nil
	}
	for _, c := range changes {
		if !c.Snapshot {
			c.Prev = r.last
		}
		msg, err := listMessage(c, c.Snapshot)
		if err != nil {
			return list, sent, err
		}
		if !c.More {
			msg.Header.Set(proto.HeaderSum, listSum(left))
		}
		n, seqs, err := p.send(ctx, []*nats.Msg{msg}, r)
		if sent += n; err != nil {
			return list, sent, err
		}
		r = relay{last: seqs[0]}
	}
	list.at = p.keepList(ref, r.last, left)
	return list, sent, nil
}

// listChanges returns the changes that lead from what is published of a list, as r says, to what is
// wanted, or a snapshot of that; and what is wanted without root events that are not accepted any
// more.
func (p *Publisher) listChanges(ctx context.Context, ref string, want []wanted.Short, r relay) (changes []proto.RootsChange, left []wanted.Short, err error) {
	limit := min(maxChange, p.maxPayload-headerRoom)
	var whole []target.ID // of the list as it is published, where that is read
	have, known := p.lists.known[ref].after(r.last)
	read := func() error {
		if whole, known, err = p.reader.At(ctx, ref, r.last); err == nil {
			have = wanted.ShortIDs(whole)
		}
		return err
	}
	if known = known && r.exists(); !known && r.exists() {
		if err := read(); err != nil {
			return nil, want, err
		}
	}
	left = want
	if known {
		more, fewer := wanted.Changes(have, want)
		gone, unknown := wanted.Find(p.ids.recent, fewer)
		if len(unknown) > 0 && whole == nil {
			if err := read(); err != nil {
				return nil, want, err
			}
		}
		if len(unknown) > 0 {
			gone, unknown = wanted.Find(whole, fewer)
		}
		added := []target.ID(nil)
		if added, left, err = p.ids.list(ctx, ref, whole, want, more); err != nil {
			return nil, want, err
		}
		changes = target.ListChanges(ref, added, gone, limit)
		if len(changes) == 0 && r.sum == listSum(left) {
			return nil, left, nil
		}
		known = len(unknown) == 0 && len(changes) > 0
	}
	if known && r.messages+len(changes) <= max(snapshotAfter, 2*r.parts) {
		return changes, left, nil
	}
	all, left, err := p.ids.list(ctx, ref, whole, left, left)
	return target.ListSnapshot(ref, all, limit), left, err
}

// keepList notes what a list is after a message.
func (p *Publisher) keepList(ref string, at uint64, roots []wanted.Short) uint64 {
	l := list{at: at, roots: len(roots)}
	if len(roots) > 0 {
		l.first = weak.Make(&roots[0])
	}
	p.lists.known[ref] = l
	return at
}

// listSum tells lists apart without looking at them, as [wanted.Target.Sum] does targets.
func listSum(roots []wanted.Short) string {
	return wanted.Target{URL: "list", Repos: map[string]wanted.Repo{"": {Roots: roots}}}.Sum()
}

func listMessage(c proto.RootsChange, rollup bool) (*nats.Msg, error) {
	subject, err := proto.RootsSubject(c.Ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, err)
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("%w: encode list: %w", errUnfit, err)
	}
	msg := &nats.Msg{Subject: subject, Data: payload, Header: nats.Header{}}
	if rollup {
		msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	return msg, nil
}

// withdrawLists withdraws lists of repositories that no target has had for long.
func (p *Publisher) withdrawLists(ctx context.Context, targets map[string]wanted.Target, now time.Time) (sent int, err error) {
	if now.Sub(p.lists.looked) < p.lists.lookEvery {
		return 0, nil
	}
	p.lists.looked = now
	for ref, r := range p.unwantedLists(targets, now) {
		msg, err := listMessage(proto.RootsChange{Ref: ref, Gone: true}, true)
		if err != nil {
			return sent, err
		}
		msg.Header.Set(proto.HeaderGone, "true")
		msg.Header.Set(jetstream.MsgTTLHeader, goneKept.String())
		n, _, err := p.send(ctx, []*nats.Msg{msg}, r)
		if sent += n; err != nil {
			return sent, fmt.Errorf("withdraw the root events of %s: %w", ref, err)
		}
		delete(p.lists.known, ref)
		delete(p.lists.unwanted, ref)
	}
	return sent, nil
}

// unwantedLists are the lists to withdraw. It forgets those that have been withdrawn for long.
func (p *Publisher) unwantedLists(targets map[string]wanted.Target, now time.Time) map[string]relay {
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := map[string]relay{}
	for ref, r := range p.listed {
		switch {
		case r.exists():
			idle[ref] = r
		case now.Sub(r.gone) > forgetAfter:
			delete(p.listed, ref)
			delete(p.lists.known, ref)
		}
	}
	for _, t := range targets {
		for ref := range t.Repos {
			delete(idle, ref)
		}
	}
	maps.DeleteFunc(p.lists.unwanted, func(ref string, _ time.Time) bool { _, still := idle[ref]; return !still })
	for ref := range idle {
		since, known := p.lists.unwanted[ref]
		if !known {
			p.lists.unwanted[ref] = now
		}
		if !known || now.Sub(since) < p.lists.keep {
			delete(idle, ref)
		}
	}
	return idle
}

// finishLists writes lists to their end that another replica has begun to write, and died. Targets
// may name what was there before, and say nothing else that there would be a change of.
func (p *Publisher) finishLists(ctx context.Context, now round) (sent int, err error) {
	if time.Now().Before(p.lists.pause) {
		return 0, nil
	}
	for ref, roots := range p.halfLists(now) {
		_, n, err := p.bringList(ctx, ref, roots, now.asOf)
		sent += n
		switch {
		case err == nil, errors.Is(err, errUnfit):
		case ctx.Err() != nil, errors.Is(err, ErrOvertaken), errors.Is(err, errLookUp):
			return sent, fmt.Errorf("finish the root events of %s: %w", ref, err)
		default:
			p.lists.pause = time.Now().Add(listsPause)
			p.log.Warn("the list of a repository's root events is not whole, and could not be finished", "repository", ref, "error", err)
			return sent, nil
		}
	}
	return sent, nil
}

// halfLists are the lists of which more is to come, as long as that has been so since what is
// wanted was worked out, and what is wanted of them.
func (p *Publisher) halfLists(now round) map[string][]wanted.Short {
	half := map[string][]wanted.Short{}
	p.mu.Lock()
	for ref, r := range p.listed {
		if r.exists() && r.sum == "" && r.last <= now.asOf {
			half[ref] = nil
		}
	}
	p.mu.Unlock()
	for ref := range half {
		for _, t := range now.wanted {
			if roots := t.Repos[ref].Roots; len(roots) > len(half[ref]) {
				half[ref] = roots
			}
		}
		if half[ref] == nil {
			delete(half, ref) // nobody wants any: it is withdrawn after a while
		}
	}
	return half
}
