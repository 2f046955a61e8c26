package pages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"tendril.dev/lib/nostr"
)

// FeedPath is where the feed of new repositories is.
const FeedPath = "/atom.xml"

// feedType is the content type of a feed.
const feedType = "application/atom+xml; charset=utf-8"

// feed is what feed readers look at (Atom, RFC 4287).
type feed struct {
	XMLName xml.Name    `xml:"http://www.w3.org/2005/Atom feed"`
	Title   string      `xml:"title"`
	ID      string      `xml:"id"`
	Updated string      `xml:"updated"`
	Links   []feedLink  `xml:"link"`
	Entries []feedEntry `xml:"entry"`
}

type feedLink struct {
	Rel  string `xml:"rel,attr"`
	Href string `xml:"href,attr"`
}

type feedEntry struct {
	Title   string     `xml:"title"`
	ID      string     `xml:"id"`
	Updated string     `xml:"updated"`
	Author  feedAuthor `xml:"author"`
	Links   []feedLink `xml:"link"`
	Summary string     `xml:"summary,omitempty"`
}

type feedAuthor struct {
	Name string `xml:"name"`
	URI  string `xml:"uri,omitempty"`
}

// Feed answers with the repositories that were announced last.
func (p *Pages) Feed(w http.ResponseWriter, r *http.Request, client string) {
	list, err := p.listed(r.Context(), client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	slices.SortStableFunc(list, func(a, b listed) int { return b.Announced.Compare(a.Announced) })
	about := p.about()
	f := feed{Title: "New repositories at " + about.Name, ID: about.Base + FeedPath}
	f.Links = []feedLink{{"self", about.Base + FeedPath}, {"alternate", about.Base + "/"}}
	for _, one := range list[:min(len(list), maxFeed)] {
		f.Entries = append(f.Entries, feedEntry{
			Title: one.Name, ID: feedID(one.ref), Updated: feedTime(one.Announced), Author: p.feedAuthor(one.Owner),
			Links: []feedLink{{"alternate", about.Base + one.Path}}, Summary: one.Description,
		})
	}
	p.sendFeed(w, r, f, "")
}

// tagFeed answers with the tags of a repository, the newest one first. A tag whose age its worker
// does not know has no place among them.
func (p *Pages) tagFeed(w http.ResponseWriter, r *http.Request, repo *repository, client string) {
	version := p.version(r, repo)
	if unchanged(w, r, version) {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.Workers.Patience+askTime)
	defer cancel()
	ages, err := p.Workers.Ages(ctx, repo.ref, client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	if ages.RefsSum != repo.refsSum {
		version = ""
	}
	repo.arrange(ages.Times)
	base := p.about().Base
	f := feed{Title: "Tags of " + repo.Name, ID: base + repo.Path + "?atom"}
	f.Links = []feedLink{{"self", f.ID}, {"alternate", base + repo.Path}}
	for _, tag := range repo.Tags {
		if tag.At.IsZero() || len(f.Entries) == maxFeed {
			break
		}
		f.Entries = append(f.Entries, feedEntry{
			Title:   repo.Name + " " + tag.Name,
			ID:      feedID(repo.ref) + "#" + tag.Commit + "-" + nostr.EncodeIdentifier(tag.Name),
			Updated: feedTime(tag.At), Author: p.feedAuthor(repo.Owner), Links: []feedLink{{"alternate", base + tag.URL}},
		})
	}
	p.sendFeed(w, r, f, version)
}

// feedID is the IRI of a repository.
func feedID(ref nostr.RepoRef) string {
	ref.Identifier = nostr.EncodeIdentifier(ref.Identifier)
	return "nostr:" + ref.String()
}

func (p *Pages) feedAuthor(owner person) feedAuthor {
	return feedAuthor{Name: cmp.Or(owner.Name, owner.Npub), URI: p.site.Base + "/" + owner.Npub}
}

func feedTime(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// sendFeed sends a feed that has a tag (ETag), or with "" that of its content.
func (p *Pages) sendFeed(w http.ResponseWriter, r *http.Request, f feed, tag string) {
	f.Updated = feedTime(time.Unix(0, 0))
	if len(f.Entries) > 0 {
		f.Updated = f.Entries[0].Updated
	}
	f.Title = printable(f.Title)
	for n := range f.Entries {
		e := &f.Entries[n]
		e.Title, e.Summary, e.Author.Name = printable(e.Title), printable(e.Summary), printable(e.Author.Name)
	}
	var b bytes.Buffer
	b.WriteString(xml.Header)
	if err := xml.NewEncoder(&b).Encode(f); err != nil {
		p.broken(w, r, err)
		return
	}
	w.Header().Set("Content-Type", feedType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	send(w, r, http.StatusOK, b.Bytes(), tag)
}

// printable leaves out of a text what people would not see.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return -1
		}
		return r
	}, harmless(s))
}
