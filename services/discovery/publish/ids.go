package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/wanted"
)

// Roots returns the ids of the accepted root events that name some repositories, by their
// references, in any order.
type Roots func(ctx context.Context, refs []string) ([][]target.ID, error)

const (
	// mostRecent is how many ids are at hand of root events that came or went since all was
	// published last; 2 MiB of them.
	mostRecent = 1 << 16
	// mostAsked is how many ids are kept during a publication, because other relays may have the
	// same repositories; 16 MiB of them. Those of one relay may be more.
	mostAsked = 1 << 19
)

// errNotAtHand: the whole ids of root events that must be taken back are in the messages only.
var errNotAtHand = errors.New("ids are not at hand")

// errLookUp: nobody answers which root events are accepted.
var errLookUp = errors.New("look up root events")

// wholeIDs finds the whole ids of what is written. Those that have just come or gone are at hand;
// for others it is asked.
type wholeIDs struct {
	roots  Roots
	recent []target.ID            // sorted
	asked  map[string][]target.ID // by reference, sorted
	held   int                    // ids in asked
	unsaid map[wanted.Short]bool  // wanted, but no longer accepted
}

// Heard notes whole ids of root events that came or went since the last call. It must not be called
// while Publish runs, and may reorder its argument.
func (p *Publisher) Heard(ids []target.ID) { p.ids.hear(ids) }

// TakeUnaccepted returns the root events that were wanted and are not accepted any more, so that
// they were not published, each once.
func (p *Publisher) TakeUnaccepted() []wanted.Short {
	list := slices.SortedFunc(maps.Keys(p.ids.unsaid), wanted.Short.Compare)
	p.ids.unsaid = nil
	return list
}

func (w *wholeIDs) hear(ids []target.ID) {
	if w.recent = target.Union(w.recent, target.SortIDs(ids)); len(w.recent) > mostRecent {
		w.recent = nil // they can be asked for
	}
}

// read notes ids, sorted, that are taken back and stood in the messages of one relay: other relays
// may have them too, whose messages need not be read then. What was heard is not given up for them.
func (w *wholeIDs) read(ids []target.ID) {
	if len(w.recent)+len(ids) <= mostRecent {
		w.recent = target.Union(w.recent, ids)
	}
}

// forget lets go of the answers, which may be out of date the next time.
func (w *wholeIDs) forget() { w.asked, w.held = nil, 0 }

// settle lets go of what was heard, because all of it is published.
func (w *wholeIDs) settle() { w.recent = nil }

// changes returns those that lead from what is published to what is wanted, without root events
// that are not accepted any more, and what is wanted without them. Where lists have what is wanted
// of a repository they name these. The error is errNotAtHand if the messages must be read before.
func (w *wholeIDs) changes(ctx context.Context, have contents, want wanted.Target, lists target.Lists, limit int) ([]proto.TargetChange, wanted.Target, error) {
	_, changed := target.Changed(have.target.Repos, want.Repos)
	missing, lost := make(map[string][]wanted.Short, len(changed)), make(map[string][]target.ID, len(changed))
	var read []target.ID
	for _, ref := range changed {
		if lists[ref] > 0 {
			continue
		}
		more, fewer := wanted.RootChanges(have.target.Repos[ref], want.Repos[ref])
		found, unknown := wanted.Find(w.recent, fewer)
		if len(unknown) > 0 {
			found, unknown = wanted.Find(have.whole.Repos[ref].Roots, fewer)
			read = append(read, found...)
		}
		if len(unknown) > 0 {
			return nil, want, errNotAtHand
		}
		missing[ref], lost[ref] = more, found
	}
	w.read(target.SortIDs(read))
	added, want, err := w.find(ctx, have, want, missing)
	if err != nil {
		return nil, want, err
	}
	return wanted.Diff(have.target, want, added, lost, lists, limit), want, nil
}

// target is what is wanted with whole ids, without root events that are not accepted any more, and
// what is wanted without them. Of repositories whose root events are in lists it has others.
func (w *wholeIDs) target(ctx context.Context, have contents, want wanted.Target, lists target.Lists) (target.Target, wanted.Target, error) {
	all := make(map[string][]wanted.Short, len(want.Repos))
	for ref, r := range want.Repos {
		if lists[ref] == 0 {
			all[ref] = r.Roots
		}
	}
	found, want, err := w.find(ctx, have, want, all)
	whole := target.Target{URL: want.URL, Bootstrap: want.Bootstrap, Repos: make(map[string]target.Repo, len(want.Repos))}
	for ref, r := range want.Repos {
		if lists[ref] > 0 {
			found[ref] = wanted.InList
		}
		whole.Repos[ref] = target.Repo{Level: r.Level, Authors: r.Authors, Roots: found[ref]}
	}
	return whole, want, err
}

// list returns the whole ids of some of the root events of a repository's list, and the list
// without those that are not accepted any more. read is the list as it is published, if that was
// read.
func (w *wholeIDs) list(ctx context.Context, ref string, read []target.ID, roots, some []wanted.Short) ([]target.ID, []wanted.Short, error) {
	have := contents{whole: target.Target{Repos: map[string]target.Repo{ref: {Roots: read}}}}
	want := wanted.Target{Repos: map[string]wanted.Repo{ref: {Roots: roots}}}
	found, want, err := w.find(ctx, have, want, map[string][]wanted.Short{ref: some})
	return found[ref], want.Repos[ref].Roots, err
}

// find returns the whole ids of some root events of a target, by the references of their
// repositories, and the target without those that are not accepted any more.
func (w *wholeIDs) find(ctx context.Context, have contents, want wanted.Target, some map[string][]wanted.Short) (map[string][]target.ID, wanted.Target, error) {
	found := make(map[string][]target.ID, len(some))
	missing := map[string][]wanted.Short{}
	for ref, short := range some {
		for _, at := range [][]target.ID{w.recent, have.whole.Repos[ref].Roots} {
			var more []target.ID
			more, short = wanted.Find(at, short)
			found[ref] = target.Union(found[ref], more)
		}
		if len(short) > 0 {
			missing[ref] = short
		}
	}
	if err := w.ask(ctx, slices.Sorted(maps.Keys(missing))); err != nil {
		return nil, want, fmt.Errorf("%w: %w", errLookUp, err)
	}
	unaccepted := map[string][]wanted.Short{}
	for ref, short := range missing {
		more, others := wanted.Find(w.asked[ref], short)
		found[ref] = target.Union(found[ref], more)
		if len(others) > 0 {
			unaccepted[ref] = others
			w.leaveOut(others)
		}
	}
	return found, want.WithoutRoots(unaccepted), nil
}

// leaveOut notes root events that are not accepted any more. Many relays may be asked for the same.
func (w *wholeIDs) leaveOut(ids []wanted.Short) {
	if w.unsaid == nil {
		w.unsaid = map[wanted.Short]bool{}
	}
	for _, id := range ids {
		w.unsaid[id] = true
	}
}

// ask asks for the root events of repositories if it has not been asked for them in this
// publication. When more must be asked for and there are very many ids already, those are dropped.
func (w *wholeIDs) ask(ctx context.Context, refs []string) error {
	unasked := slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { _, asked := w.asked[ref]; return asked })
	if len(unasked) == 0 {
		return nil
	}
	if w.held > mostAsked {
		w.forget()
		unasked = refs
	}
	lists, err := w.roots(ctx, unasked)
	if err != nil {
		return err
	}
	if w.asked == nil {
		w.asked = map[string][]target.ID{}
	}
	for n, ref := range unasked {
		w.asked[ref] = target.SortIDs(lists[n])
		w.held += len(w.asked[ref])
	}
	return nil
}
