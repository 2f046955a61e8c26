package pages

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// maxPlace is the longest path in a repository that is looked for, in bytes.
const maxPlace = 4096

// revision is a branch or a tag, as the query of a page names it.
type revision struct {
	Kind string // "branch" or "tag"
	Name string // without refs/…
}

// refName is its full name.
func (v revision) refName() string {
	if v.Kind == "tag" {
		return "refs/tags/" + v.Name
	}
	return "refs/heads/" + v.Name
}

// view is what a visitor wants to see of a repository's data.
type view struct {
	revision
	Place string // path of a folder or file; "" is the root
	Raw   bool   // the file as it is
	Log   bool   // the commits, behind Skip newer ones
	Skip  int
	// Commit is the commit for whose page a raw file is wanted, if any. A branch may have moved on; then
	// the file is as it is there now.
	Commit string
}

// wanted reads the query of a page. named: it names a branch or a tag.
func wanted(q url.Values) (v view, named bool) {
	for _, kind := range []string{"branch", "tag"} {
		if q.Get(kind) != "" {
			v.revision, named = revision{kind, q.Get(kind)}, true
		}
	}
	v.Place, v.Raw, v.Log, v.Commit = q.Get("path"), q.Has("raw"), q.Has("log"), q.Get("commit")
	v.Skip, _ = strconv.Atoi(q.Get("log"))
	return v, named && len(v.Name) <= maxPlace && len(v.Place) <= maxPlace && v.Skip >= 0 && v.Skip <= proto.MaxRepoSkip
}

// code is what pages show of a repository's data.
type code struct {
	view
	Home    string                   // path of the repository's page, below the base path
	link    func(path string) string // leads there from any page
	kept    *renderings
	refsSum string // of the worker's branches and tags, see [proto.SumOfRefs]
	Parents []crumb
	Commit  *commit
	Rows    template.HTML // the entries of a folder, a line each
	More    bool          // entries that are not shown
	Readme  template.HTML
	File    *file
	Commits []commit
	Newer   string // URLs
	Older   string
}

// crumb is a folder above what is shown.
type crumb struct{ Name, URL string }

type commit struct {
	ID, Short, Author, Subject string
	At                         time.Time
}

// file is one file. Text is what is shown of it, unless it is rendered.
type file struct {
	Name, Size, Raw string
	Rendered        template.HTML
	Text            string
	Binary, Large   bool
}

// at is the page of a folder or file of the same branch or tag.
func (c *code) at(place string, more ...string) string {
	q := url.Values{c.Kind: {c.Name}}
	if place != "" {
		q.Set("path", place)
	}
	for _, name := range more {
		q.Set(name, "1")
	}
	return c.Home + "?" + q.Encode()
}

// LogURL is the page of the commits behind skip newer ones.
func (c *code) LogURL(skip int) string {
	return c.Home + "?" + url.Values{c.Kind: {c.Name}, "log": {strconv.Itoa(skip)}}.Encode()
}

// URL is the page itself.
func (c *code) URL() string {
	if c.Log {
		return c.LogURL(c.Skip)
	}
	return c.at(c.Place)
}

// Last is the name of the folder or file itself.
func (c *code) Last() string { return path.Base(c.Place) }

// Title says what the page shows.
func (c *code) Title() string {
	switch {
	case c.Log:
		return "Commits of " + c.Name
	case c.Place == "":
		return "Files of " + c.Name
	}
	return c.Place + " at " + c.Name
}

// RootURL is the page of the root folder.
func (c *code) RootURL() string { return c.at("") }

// readCode asks the worker of a repository for what a page shows, and waits for that long for a
// worker where there is none. nil: there is no such thing.
func (p *Pages) readCode(ctx context.Context, ref nostr.RepoRef, home, client string, v view,
	patience time.Duration) (*code, *proto.RepoFile, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+askTime)
	defer cancel()
	workers := p.Workers
	workers.Patience = patience
	c := &code{view: v, Home: home, link: p.Settings.At, kept: p.renderings}
	if v.Log {
		a, err := workers.Log(ctx, ref, proto.RepoLogQuestion{Name: v.refName(), Skip: v.Skip, Client: client})
		if err != nil || len(a.Commits) == 0 {
			return nil, nil, err
		}
		c.addLog(a)
		return c, nil, nil
	}
	a, err := workers.Folder(ctx, ref, proto.RepoFolderQuestion{Name: v.refName(), Path: v.Place, Client: client})
	if err != nil || a.Commit == nil {
		return nil, nil, err
	}
	c.addFolder(a)
	return c, a.File, nil
}

func (c *code) addLog(a proto.RepoLogAnswer) {
	c.refsSum = a.RefsSum
	for _, one := range a.Commits {
		c.Commits = append(c.Commits, shown(one))
	}
	if c.Skip > 0 {
		c.Newer = c.LogURL(max(0, c.Skip-proto.MaxRepoCommits))
	}
	if next := c.Skip + proto.MaxRepoCommits; a.More && next <= proto.MaxRepoSkip {
		c.Older = c.LogURL(next)
	}
}

func (c *code) addFolder(a proto.RepoFolderAnswer) {
	tip := shown(*a.Commit)
	c.Commit, c.More, c.refsSum = &tip, a.More, a.RefsSum
	parts := strings.Split(c.Place, "/")
	for n := range len(parts) - 1 {
		c.Parents = append(c.Parents, crumb{parts[n], c.at(strings.Join(parts[:n+1], "/"))})
	}
	var rows strings.Builder
	for _, kind := range []proto.RepoEntryKind{proto.EntryFolder, proto.EntrySubmodule, proto.EntryLink, proto.EntryFile} {
		for _, e := range a.Entries {
			if e.Kind == kind {
				c.writeRow(&rows, e)
			}
		}
	}
	c.Rows = template.HTML(rows.String())
	if a.Readme != nil {
		readme := c.show(a.Readme, c.Place)
		if c.Readme = readme.Rendered; c.Readme == "" && readme.Text != "" {
			c.Readme = template.HTML("<pre>" + template.HTMLEscapeString(readme.Text) + "</pre>")
		}
	}
	if a.File != nil {
		c.File = c.show(a.File, strings.TrimSuffix(path.Dir(c.Place), "."))
	}
}

// marks are what stands behind the names of entries.
var marks = map[proto.RepoEntryKind]string{
	proto.EntryFolder: "/", proto.EntryLink: " (link)", proto.EntrySubmodule: " (submodule)",
}

// writeRow writes an entry of the folder as a line of the list. A folder may have a thousand: by the
// template their lines took a third of the page's time.
func (c *code) writeRow(to *strings.Builder, e proto.RepoEntry) {
	name := "<bdi>" + template.HTMLEscapeString(e.Name) + "</bdi>"
	if e.Kind != proto.EntrySubmodule {
		name = `<a href="` + template.HTMLEscapeString(c.link(c.at(path.Join(c.Place, e.Name)))) + `">` + name + "</a>"
	}
	to.WriteString("<li><span>" + name + marks[e.Kind] + "</span>")
	if e.Changed != nil {
		subject := template.HTMLEscapeString(e.Changed.Subject)
		to.WriteString(` <small class="change"><bdi>` + subject + "</bdi></small>")
		to.WriteString(" <small>" + string(ago(e.Changed.At)) + "</small>")
	}
	to.WriteString("</li>\n")
}

// show prepares a file of a folder.
func (c *code) show(f *proto.RepoFile, folder string) *file {
	to := &file{Name: f.Name, Size: humanize.IBytes(uint64(f.Bytes)),
		Raw: c.at(path.Join(folder, f.Name), "raw")}
	switch {
	case f.Bytes > int64(len(f.Data)):
		to.Large = true
	case !utf8.Valid(f.Data) || bytes.IndexByte(f.Data, 0) >= 0:
		to.Binary = true
	default:
		to.Text = visible(string(f.Data))
		if isMarkdown(f.Name) && len(f.Data) <= maxMarkdown {
			// Where it cannot be rendered the text is shown.
			at := renderedAt{home: c.Home, revision: c.revision, folder: folder, commit: c.Commit.ID}
			to.Rendered, _ = c.kept.render(f.Data, at, links{
				folder: folder,
				page:   func(place string) string { return c.link(c.at(place)) },
				raw:    func(place string) string { return c.link(c.at(place, "raw") + "&commit=" + c.Commit.ID) },
			})
		}
	}
	return to
}

func shown(c proto.RepoCommit) commit {
	return commit{
		ID: c.ID, Short: c.ID[:min(len(c.ID), 10)], Author: c.Author, Subject: c.Subject, At: c.At,
	}
}

// isBidi reports whether a character changes the direction in which others are written. With these
// a stranger makes a text look like another one.
func isBidi(r rune) bool {
	return r >= 0x202A && r <= 0x202E || r >= 0x2066 && r <= 0x2069 || r == 0x200E || r == 0x200F || r == 0x061C
}

// harmless leaves such characters out of a text. Every page goes through it as a whole.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if isBidi(r) {
			return -1
		}
		return r
	}, s)
}

// visible writes such characters of a file as their numbers, as a reader of code must see them.
func visible(s string) string {
	if !strings.ContainsFunc(s, isBidi) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isBidi(r) {
			fmt.Fprintf(&b, "<U+%04X>", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// rawPolicy is the Content-Security-Policy of a stranger's file: it may do nothing.
const rawPolicy = "default-src 'none'; style-src 'unsafe-inline'; sandbox"

// raw answers with a file as it is: images as such, all else as text, so that no browser runs it.
// tag names it (ETag); without one its content does. isFixed: the address names the commit too, so
// there will never be another file.
func raw(w http.ResponseWriter, r *http.Request, f *proto.RepoFile, tag string, isFixed bool) {
	if f.Bytes > int64(len(f.Data)) {
		http.Error(w, fmt.Sprintf("this file has %s: clone the repository to read it", humanize.IBytes(uint64(f.Bytes))),
			http.StatusRequestEntityTooLarge)
		return
	}
	kind := "application/octet-stream"
	switch detected := http.DetectContentType(f.Data); {
	case strings.HasPrefix(detected, "image/"):
		kind = detected
	case strings.EqualFold(path.Ext(f.Name), ".svg") && utf8.Valid(f.Data):
		kind = "image/svg+xml"
	case utf8.Valid(f.Data) && bytes.IndexByte(f.Data, 0) < 0:
		kind = "text/plain; charset=utf-8"
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", rawPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("ETag", cmp.Or(tag, etag(f.Data)))
	if h.Set("Cache-Control", askAgain); isFixed {
		h.Set("Cache-Control", forEver)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.Data))
}
