package pages

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

const (
	// maxThreads is how many issues or pull requests of a repository are looked at, the newest ones.
	maxThreads = 1000
	// maxStatuses is how many status events about them are looked at, the newest ones. Only those who
	// may decide can write them.
	maxStatuses = 5000
	// keptThreads is for how many lists of threads pages remember what they have shown.
	keptThreads = 128
	// maxTitle is the longest title that is shown, in characters.
	maxTitle = 150
)

// threadKind is what the query of a page names of the conversations about a repository.
type threadKind struct {
	Query string // name of the query: "issues" or "pulls"
	Title string
	kinds []int
	done  string // the state of one that was applied (kind 1631)
	Ended string // the state of all about which no work is left
}

var (
	issues = threadKind{"issues", "Issues", []int{nostr.KindIssue}, "resolved", "resolved or closed"}
	pulls  = threadKind{"pulls", "Pull requests", []int{nostr.KindPR, nostr.KindPatch}, "merged", "merged or closed"}
)

// thread is an issue, a pull request or a patch, as a list shows it.
type thread struct {
	Title, State string
	Link         string // where the thread can be read
	Author       person
	At           time.Time
}

// open reports whether something is still to be done about it.
func (t thread) open() bool { return t.State == stateOpen || t.State == stateDraft }

const stateOpen, stateDraft, stateClosed = "open", "draft", "closed"

// tally is how many threads there are.
type tally struct {
	threadKind
	URL          string // of the list
	Open, Closed int
	More         bool // there are older ones that are not counted
}

// threads are the conversations of one kind about a repository, the newest one first.
type threads struct {
	list []thread
	more bool // there are older ones
}

// tally counts them.
func (t threads) tally(kind threadKind, at string) tally {
	count := tally{threadKind: kind, URL: at + "?" + kind.Query, More: t.more}
	for _, one := range t.list {
		if one.open() {
			count.Open++
		} else {
			count.Closed++
		}
	}
	return count
}

// threadsOf names the conversations of one kind about a repository.
type threadsOf struct {
	ref   nostr.RepoRef
	query string // of their kind
}

// threadsAbout are the conversations of one kind about a repository.
func (p *Pages) threadsAbout(ctx context.Context, repo *repository, kind threadKind, client string) (threads, error) {
	return p.threads.get(ctx, p, client, threadsOf{repo.ref, kind.Query},
		func(ctx context.Context, v *eventdb.View) (threads, error) {
			return readThreads(ctx, v, kind, repo.ref, repo.group)
		})
}

// addTallies counts the conversations about a repository.
func (p *Pages) addTallies(ctx context.Context, repo *repository, client string) error {
	for kind, tally := range map[*threadKind]*tally{&issues: &repo.Issues, &pulls: &repo.Pulls} {
		all, err := p.threadsAbout(ctx, repo, *kind, client)
		if err != nil {
			return err
		}
		*tally = all.tally(*kind, repo.Path)
	}
	return nil
}

// readThreads reads the conversations about a repository that name it by the coordinate of its
// owner or of a confirmed maintainer: clients name one of them or all.
func readThreads(ctx context.Context, v *eventdb.View, kind threadKind, ref nostr.RepoRef, group authority.Group) (
	t threads, err error) {
	names := people{view: v}
	filter := nostr.Filter{Kinds: kind.kinds, Tags: nostr.TagMap{"a": coordinates(ref, group)}, Limit: maxThreads + 1}
	var roots []*nostr.Event
	for ev, err := range v.Query(ctx, filter) {
		if err != nil {
			return t, fmt.Errorf("list %s: %w", kind.Query, err)
		}
		if ev.Kind == nostr.KindPatch && !isRootPatch(ev) {
			continue
		}
		roots = append(roots, ev)
	}
	if len(roots) > maxThreads {
		roots, t.more = roots[:maxThreads], true
	}
	states, err := statesOf(ctx, v, kind, roots, group)
	if err != nil {
		return t, err
	}
	now := time.Now()
	for _, ev := range roots {
		one := thread{Title: titleOf(ev), State: states[ev.ID], Author: names.of(ev.PubKey), At: timeOf(ev, now)}
		if nevent, err := nip19.EncodeEvent(ev.ID, nil, ev.PubKey); err == nil {
			one.Link = "https://gitworkshop.dev/" + nevent
		}
		t.list = append(t.list, one)
	}
	return t, names.failed
}

// coordinates are those by which a repository is named.
func coordinates(ref nostr.RepoRef, group authority.Group) []string {
	list := []string{ref.String()}
	for _, key := range group.Confirmed {
		list = append(list, nostr.RepoRef{PubKey: key, Identifier: ref.Identifier}.String())
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// isRootPatch reports whether a patch is the first one of a proposal. Those that follow it, and
// its later versions, are replies to it.
func isRootPatch(ev *nostr.Event) bool {
	return ev.Tags.FindWithValue("t", "root") != nil || ev.Tags.Find("e") == nil
}

// statesOf finds out where threads stand: the newest status event (kinds 1630 to 1633) by the
// author of a thread or by a confirmed maintainer says so, and without one a thread is open.
func statesOf(ctx context.Context, v *eventdb.View, kind threadKind, roots []*nostr.Event, group authority.Group) (
	map[string]string, error) {
	states, authors := make(map[string]string, len(roots)), make(map[string]string, len(roots))
	filter := nostr.Filter{
		Kinds: []int{nostr.KindStatusOpen, nostr.KindStatusApplied, nostr.KindStatusClosed, nostr.KindStatusDraft},
		Tags:  nostr.TagMap{}, Authors: slices.Clone(group.Confirmed), Limit: maxStatuses,
	}
	for _, ev := range roots {
		states[ev.ID], authors[ev.ID] = "", ev.PubKey
		filter.Tags["e"] = append(filter.Tags["e"], ev.ID)
		filter.Authors = append(filter.Authors, ev.PubKey)
	}
	slices.Sort(filter.Authors)
	filter.Authors = slices.Compact(filter.Authors)
	if len(roots) == 0 {
		return states, nil
	}
	for ev, err := range v.Query(ctx, filter) {
		if err != nil {
			return nil, fmt.Errorf("look up the states of %s: %w", kind.Query, err)
		}
		for tag := range ev.Tags.FindAll("e") {
			if len(tag) < 2 {
				continue
			}
			state, asked := states[tag[1]]
			if asked && state == "" && (group.Has(ev.PubKey) || authors[tag[1]] == ev.PubKey) {
				states[tag[1]] = kind.stateBy(ev.Kind)
			}
		}
	}
	for id, state := range states {
		if state == "" {
			states[id] = stateOpen
		}
	}
	return states, nil
}

// stateBy is the state that a status event gives.
func (k threadKind) stateBy(status int) string {
	switch status {
	case nostr.KindStatusApplied:
		return k.done
	case nostr.KindStatusClosed:
		return stateClosed
	case nostr.KindStatusDraft:
		return stateDraft
	}
	return stateOpen
}

// titleOf is the subject of a thread, or the first line of its text.
func titleOf(ev *nostr.Event) string {
	title := ""
	if tag := ev.Tags.Find("subject"); len(tag) > 1 {
		title = tag[1]
	}
	if strings.TrimSpace(title) == "" {
		for line := range strings.Lines(ev.Content) {
			if ev.Kind == nostr.KindPatch {
				subject, is := strings.CutPrefix(line, "Subject:")
				if !is {
					continue
				}
				line = subject
			}
			if title = strings.TrimSpace(line); title != "" {
				break
			}
		}
	}
	if title = clip(harmless(strings.Join(strings.Fields(title), " ")), maxTitle); title == "" {
		return "(without a title)"
	}
	return title
}

// shownThreads is a list of threads, as a query asks for it.
type shownThreads struct {
	tally
	Shut bool // those about which no work is left
	part[thread]
}

// wantedThreads reads which threads a query asks for.
func wantedThreads(q url.Values) (kind threadKind, wanted bool) {
	for _, kind := range []threadKind{issues, pulls} {
		if q.Has(kind.Query) {
			return kind, true
		}
	}
	return threadKind{}, false
}

// repositoryThreads answers with a list of issues or pull requests: with those that are open, or
// with the others if the query's value is "closed".
func (p *Pages) repositoryThreads(w http.ResponseWriter, r *http.Request, repo *repository, kind threadKind,
	client string) {
	all, err := p.threadsAbout(r.Context(), repo, kind, client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	list := shownThreads{tally: all.tally(kind, repo.Path), Shut: r.URL.Query().Get(kind.Query) == stateClosed}
	query := url.Values{kind.Query: {""}}
	if list.Shut {
		query.Set(kind.Query, stateClosed)
	}
	page := repo.Path + "?" + query.Encode()
	list.part = partOf(slices.DeleteFunc(slices.Clone(all.list), func(t thread) bool { return t.open() == list.Shut }),
		r, repo.Path, query)
	p.show(w, r, http.StatusOK, "threads", struct {
		*repository
		Site    site
		Threads shownThreads
		Page    string
	}{repo, p.about(), list, page})
}
