package pages

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril.dev/lib/authority"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

const (
	// maxDirectory is how many repositories the front page knows at most, those announced last.
	maxDirectory = 10_000
	// maxSearch is the longest text that is searched for, in bytes.
	maxSearch = 200
	// maxFeed is how many entries a feed has.
	maxFeed = 50
)

// listed is a repository in a list.
type listed struct {
	ref                     nostr.RepoRef
	Name, Description, Path string
	Owner                   person
	Archive                 bool
	Announced               time.Time // when its announcement was signed
	Active                  time.Time // when that or its newest state was signed
	found                   string    // the text that is searched, in lower case
}

// listed returns the repositories that are here now, the one with the newest activity first.
func (p *Pages) listed(ctx context.Context, client string) ([]listed, error) {
	list, err := p.directory.get(ctx, p, client, everything{}, p.hosted)
	// A ban counts at once.
	return slices.DeleteFunc(slices.Clone(list), func(one listed) bool { return p.Bans.Repository(one.ref) != nil }), err
}

// hosted reads the repositories that are here, the one with the newest activity first.
func (p *Pages) hosted(ctx context.Context, v *eventdb.View) (list []listed, err error) {
	names := people{view: v}
	now := time.Now()
	for ev, err := range v.Query(ctx, nostr.Filter{Kinds: []int{nostr.KindAnnouncement}}) {
		if err != nil {
			return nil, fmt.Errorf("list repositories: %w", err)
		}
		a, err := nostr.ParseAnnouncement(ev)
		if err != nil {
			continue // ingest accepts none that cannot be read
		}
		all := announcementsOf(v, a)
		kept := p.rules.Keeps(a, all)
		if all.failed != nil {
			return nil, fmt.Errorf("list repositories: %w", all.failed)
		}
		if !kept {
			continue
		}
		one := listed{
			ref: a.Ref, Name: nameOf(a), Description: clip(a.Description, maxName), Owner: names.of(a.Ref.PubKey),
			Path:    nostr.RepositoryURLPath(nostr.Npub(a.Ref.PubKey), a.Ref.Identifier),
			Archive: p.rules.Archives(a), Announced: timeOf(ev, now),
		}
		state, err := newestState(v, authority.Of(all, a.Ref.PubKey), a.Ref.Identifier)
		if err != nil {
			return nil, err
		}
		if one.Active = one.Announced; state != nil && timeOf(state, now).After(one.Active) {
			one.Active = timeOf(state, now)
		}
		one.found = strings.ToLower(strings.Join([]string{one.Name, a.Ref.Identifier, one.Description, one.Owner.Name,
			one.Owner.Npub}, "\n"))
		if list = append(list, one); len(list) == maxDirectory {
			break
		}
	}
	slices.SortStableFunc(list, func(a, b listed) int { return b.Active.Compare(a.Active) })
	return list, names.failed
}

// timeOf is when an event was signed; now, where its author wrote a later time.
func timeOf(ev *nostr.Event, now time.Time) time.Time {
	if at := ev.CreatedAt.Time(); at.Before(now) {
		return at.UTC()
	}
	return now.UTC()
}

// part is a page of a list.
type part[T any] struct {
	Items        []T
	All          int    // in all pages
	Newer, Older string // URLs of the pages before and behind; "": there is none
}

// partOf cuts the page out of a list that a request's `page` names, the first one being 1. The pages
// are at that address, with that query.
func partOf[T any](list []T, r *http.Request, at string, query url.Values) part[T] {
	pages := max(1, (len(list)+maxListed-1)/maxListed)
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	page = min(max(1, page), pages)
	one := part[T]{Items: list[(page-1)*maxListed : min(page*maxListed, len(list))], All: len(list)}
	link := func(page int) string {
		query.Set("page", strconv.Itoa(page))
		return at + "?" + query.Encode()
	}
	if page > 1 {
		one.Newer = link(page - 1)
	}
	if page < pages {
		one.Older = link(page + 1)
	}
	return one
}

// found are the repositories in which every word of a text occurs.
func found(list []listed, text string) []listed {
	words := strings.Fields(strings.ToLower(text))
	return slices.DeleteFunc(list, func(one listed) bool {
		return slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(one.found, word) })
	})
}

// Home answers with the front page: with what the service is, and with the repositories in which
// the words of the query `q` occur.
func (p *Pages) Home(w http.ResponseWriter, r *http.Request, client string) {
	w.Header().Set("Vary", "Accept")
	list, err := p.listed(r.Context(), client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	query := url.Values{}
	text := clip(strings.ToValidUTF8(r.URL.Query().Get("q"), ""), maxSearch)
	if text != "" {
		query.Set("q", text)
		list = found(list, text)
	}
	p.show(w, r, http.StatusOK, "home", home{p.about(), text, partOf(list, r, "/", query), false})
}

// home is what the front page shows.
type home struct {
	site
	Search       string
	Repositories part[listed]
	Members      bool // only they see the repositories
}

// Front answers with the front page of a private service for those who are no members.
func (p *Pages) Front(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	p.show(w, r, http.StatusOK, "home", home{site: p.about(), Members: true})
}

// author answers with the list of an author's repositories, or with 404 where there is none.
func (p *Pages) author(w http.ResponseWriter, r *http.Request, pubkey, client string) {
	list, err := p.listed(r.Context(), client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	list = slices.DeleteFunc(list, func(one listed) bool { return one.ref.PubKey != pubkey })
	if len(list) == 0 {
		p.NotFound(w, r)
		return
	}
	p.show(w, r, http.StatusOK, "author", struct {
		site
		Author       person
		Repositories part[listed]
	}{p.about(), list[0].Owner, partOf(list, r, "/"+nostr.Npub(pubkey), url.Values{})})
}
