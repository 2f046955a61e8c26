// Package pages shows what the service is and what it hosts: the relay information document to
// nostr clients (NIP-11), and pages to people in a browser (GRASP-01: a page at a repository's
// address, 404 for what is not hosted). Pages are plain HTML with nothing from elsewhere; a script
// of a few lines copies what must be copied. It changes nothing, and shows nothing that a REQ or a
// clone does not bring.
package pages

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
)

//go:embed pages.html
var source string

//go:embed style.css
var style string

//go:embed copy.js
var script string

// answerIn is the longest time for making a page.
const answerIn = 10 * time.Second

// askTime is how long the worker of a repository may take for its answer, beside the wait for that
// worker.
const askTime = 5 * time.Second

// Options is what the pages need. Every field must be set.
type Options struct {
	Settings config.Settings
	Limits   relay.Limits
	Owner    string // the operator's public key, 64 hex digits
	Index    *eventdb.DB
	Bans     *bans.Set
	Work     *limit.Fair     // over the index
	Workers  gitquery.Client // know the repositories that wait for their git data
	Log      *slog.Logger
}

// Pages makes the pages and the document.
type Pages struct {
	Options
	site      site
	build     string // names the program and its templates
	rules     config.Rules
	directory *derived[everything, []listed]
	threads   *derived[threadsOf, threads]

	renderings *renderings
	pages      *template.Template
	iconURL    string
	icon       []byte // nil: it is elsewhere
}

// site is what all pages know.
type site struct {
	Name, Description, Criteria string
	Relay, Base, Host           string // ws and http URL of the service, and its address without a scheme
	Style                       template.CSS
	Script                      template.JS
}

// New makes the pages of a service.
func New(o Options) (*Pages, error) {
	s := o.Settings
	rules, err := s.Hosting()
	if err != nil {
		return nil, err
	}
	iconURL, body, err := icon(s)
	if err != nil {
		return nil, err
	}
	return &Pages{
		Options: o,
		site: site{
			Criteria: criteria(s),
			Relay:    s.URL("ws"), Base: s.URL("http"), Host: s.Address(),
			Style: template.CSS(style), Script: template.JS(script),
		},
		build: build(), rules: rules,
		directory: newDerived[everything, []listed](1), threads: newDerived[threadsOf, threads](keptThreads),

		renderings: newRenderings(),
		pages:      template.Must(template.New("pages").Funcs(template.FuncMap{"at": s.At, "ago": ago}).Parse(source)),
		iconURL:    iconURL, icon: body,
	}, nil
}

// ago shows how long ago something was, and the time itself where a reader points at it. A folder of a
// thousand files has as many of these: by a template they took a quarter of the page's time.
func ago(at time.Time) template.HTML {
	at = at.UTC()
	return template.HTML(`<time datetime="` + at.Format(time.RFC3339) + `" title="` + at.Format(time.DateTime) + ` UTC">` +
		humanize.Time(at) + `</time>`)
}

// now are the settings with what an operator's client has changed (NIP-86), and the URL of the
// icon.
func (p *Pages) now() (s config.Settings, icon string) {
	s = p.Settings
	info := p.Bans.Info()
	s.RelayName, s.RelayDescription = cmp.Or(info.Name, s.RelayName), cmp.Or(info.Description, s.RelayDescription)
	return s, cmp.Or(info.Icon, p.iconURL)
}

// about is what pages say of the service now.
func (p *Pages) about() site {
	s, _ := p.now()
	about := p.site
	about.Name, about.Description = s.DisplayName(), s.RelayDescription
	return about
}

// policy is the Content-Security-Policy: our own style and script, the icon, and nothing else.
func policy(icon string) string {
	images := "'self'"
	if u, err := url.Parse(icon); err == nil && u.Host != "" {
		images += " " + u.Scheme + "://" + u.Host
	}
	return "default-src 'none'; style-src " + hashOf(style) + "; script-src " + hashOf(script) + "; img-src " + images +
		"; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
}

func hashOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}

// WantsDocument reports whether a request asks for the relay information document.
func WantsDocument(r *http.Request) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		kind, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(kind), documentType) {
			return true
		}
	}
	return false
}

// Document answers with the relay information document.
func (p *Pages) Document(w http.ResponseWriter) {
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Content-Type", documentType)
	s, icon := p.now()
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(document(s, p.Limits, p.Owner, icon)) // only the client may fail
}

// Other answers at an address that is not of a repository: with the list of an author's
// repositories, from an address without ".git" with the way to the one with it, or with 404.
func (p *Pages) Other(w http.ResponseWriter, r *http.Request, client string) {
	npub, name, named := strings.Cut(strings.Trim(r.URL.EscapedPath(), "/"), "/")
	prefix, key, err := nip19.Decode(npub)
	author, _ := key.(string)
	if err != nil || prefix != "npub" {
		p.NotFound(w, r)
		return
	}
	if path := "/" + npub + "/" + name + ".git"; named {
		if _, err := nostr.ParseRepositoryPath(path); err != nil {
			p.NotFound(w, r)
			return
		}
		http.Redirect(w, r, p.Settings.At(path), http.StatusFound)
		return
	}
	p.author(w, r, author, client)
}

// Icon answers with the icon, or with where it is.
func (p *Pages) Icon(w http.ResponseWriter, r *http.Request) {
	if _, icon := p.now(); p.icon == nil || icon != p.iconURL {
		http.Redirect(w, r, icon, http.StatusFound)
		return
	}
	w.Header().Set("Content-Type", "image/png")
	w.Header().Set("Cache-Control", "public, max-age=86400")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.icon))
}

// look looks at the index when it is the client's turn.
func (p *Pages) look(ctx context.Context, client string, at func(context.Context, *eventdb.View) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	turn, err := p.Work.Turn(ctx, client)
	if err != nil {
		return fmt.Errorf("wait for a look at the index: %w", err)
	}
	defer turn.Pause()
	v := p.Index.View()
	defer v.Close()
	return at(ctx, v.Yielding(turn.Yield))
}

// What is said on the pages of repositories of which nothing is shown but what the address itself
// says.
const (
	aboutHeld = "This repository has been announced, and its git data is awaited. It will be shown here once the data " +
		"has been pushed, or found at another address of the repository."
	aboutElsewhere = "The announcement of this repository that is served here does not list this service. What is here " +
		"of its git data can be cloned."
	aboutContributions = "This is where a contributor pushes the commits of pull requests to a repository, as " +
		"refs/nostr/<event id>. What is here can be cloned."
)

// Repository answers with the page of a repository, or with 404 if it is not here. Every address
// for contributors' pull requests (GRASP-06) can be cloned, also where nothing has been pushed yet.
func (p *Pages) Repository(w http.ResponseWriter, r *http.Request, at nostr.RepositoryPath, client string) {
	if path, slash := strings.CutSuffix(r.URL.EscapedPath(), "/"); slash {
		http.Redirect(w, r, p.Settings.At(path), http.StatusFound)
		return
	}
	if ban := p.Bans.Repository(nostr.RepoRef{PubKey: at.PubKey, Identifier: at.Identifier}); ban != nil {
		p.show(w, r, http.StatusForbidden, "banned", struct {
			site
			Message string
		}{p.about(), ban.Message()})
		return
	}
	var repo *repository
	var err error
	var held proto.RepoWaitsAnswer
	about := aboutContributions
	here := at.PRs && p.Settings.ContributorPRs
	if !at.PRs {
		err = p.look(r.Context(), client, func(ctx context.Context, v *eventdb.View) (err error) {
			repo, err = p.repository(v, at.PubKey, at.Identifier)
			return err
		})
		switch {
		case err == nil:
			p.hostedRepository(w, r, repo, client)
			return
		case errors.Is(err, errNotHosted):
			about = aboutHeld
			held, err = p.waits(r.Context(), at)
		case errors.Is(err, errElsewhere): // it may have been archived by earlier settings
			about = aboutElsewhere
			held, err = p.waits(r.Context(), at)
		}
	}
	owner, wrong := nip19.EncodePublicKey(at.PubKey)
	switch {
	case err != nil:
		p.broken(w, r, err)
	case !here && !held.Here || wrong != nil:
		p.NotFound(w, r)
	default:
		path := nostr.RepositoryURLPath(owner, at.Identifier)
		if at.PRs {
			path = "/prs" + path
		}
		p.show(w, r, http.StatusOK, "bare", struct {
			site
			About, Identifier, Owner, Path string
			Waits                          *proto.Waits
		}{p.about(), about, at.Identifier, owner, path, held.Waits})
	}
}

// hostedRepository answers with the page of a repository that is announced, or with what its query
// names: a folder, a file, commits, issues, pull requests, or the feed of its tags.
func (p *Pages) hostedRepository(w http.ResponseWriter, r *http.Request, repo *repository, client string) {
	query := r.URL.Query()
	kind, asksThreads := wantedThreads(query)
	v, named := wanted(query)
	switch {
	case asksThreads:
		p.repositoryThreads(w, r, repo, kind, client)
	case query.Has("atom"):
		p.tagFeed(w, r, repo, client)
	case named:
		p.repositoryCode(w, r, repo, v, client)
	case query.Has("branch") || query.Has("tag"):
		p.NotFound(w, r)
	default:
		p.repositoryHome(w, r, repo, client)
	}
}

// repositoryPage is what the page of a repository, and the pages of its files and commits, show.
type repositoryPage struct {
	*repository
	Site  site
	Nostr template.URL
	Code  *code
	Page  string // the one address of this page
	Away  bool   // the worker does not answer
}

func (p *Pages) repositoryPage(repo *repository) repositoryPage {
	return repositoryPage{
		repository: repo, Site: p.about(), Nostr: template.URL("nostr:" + repo.Naddr), Page: repo.Path,
	}
}

// repositoryHome answers with the page of a repository. All but its files and the ages of its
// branches can be shown without its worker.
func (p *Pages) repositoryHome(w http.ResponseWriter, r *http.Request, repo *repository, client string) {
	err := p.addTallies(r.Context(), repo, client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	tag := p.version(r, repo)
	if unchanged(w, r, tag) {
		return
	}
	data := p.repositoryPage(repo)
	var ages proto.RepoAgesAnswer
	if repo.Head != "" {
		ctx, cancel := context.WithTimeout(r.Context(), askTime)
		defer cancel()
		workers := p.Workers
		workers.Patience = 0
		asked := make(chan error, 1)
		go func() {
			var err error
			ages, err = workers.Ages(ctx, repo.ref, client)
			asked <- err
		}()
		data.Code, _, err = p.readCode(ctx, repo.ref, repo.Path, client, view{revision: revision{"branch", repo.Head}}, 0)
		err = cmp.Or(err, <-asked)
	}
	if data.Away = err != nil; data.Away {
		p.Log.Debug("a page without its files", "repository", repo.Path, "error", err)
	}
	if data.Away || data.Code == nil || data.Code.refsSum != repo.refsSum || ages.RefsSum != repo.refsSum {
		tag = ""
	}
	repo.arrange(ages.Times)
	p.render(w, r, http.StatusOK, "repository", data, tag)
}

// repositoryCode answers with a folder, a file or commits of a branch or tag.
func (p *Pages) repositoryCode(w http.ResponseWriter, r *http.Request, repo *repository, v view, client string) {
	tag := p.version(r, repo)
	if unchanged(w, r, tag) {
		return
	}
	data := p.repositoryPage(repo)
	var content *proto.RepoFile
	var err error
	data.Code, content, err = p.readCode(r.Context(), repo.ref, repo.Path, client, v, p.Workers.Patience)
	if data.Code != nil {
		data.Page = data.Code.URL()
	}
	switch {
	case err != nil:
		p.broken(w, r, err)
	case data.Code == nil, v.Raw && content == nil:
		p.NotFound(w, r)
	default:
		if data.Code.refsSum != repo.refsSum {
			tag = ""
		}
		if v.Raw {
			raw(w, r, content, tag, v.Commit == data.Code.Commit.ID)
			return
		}
		p.render(w, r, http.StatusOK, "code", data, tag)
	}
}

// waits asks the worker of a repository whether it is here, and what it waits for.
func (p *Pages) waits(ctx context.Context, at nostr.RepositoryPath) (proto.RepoWaitsAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Workers.Patience+askTime)
	defer cancel()
	return p.Workers.Waits(ctx, nostr.RepoRef{PubKey: at.PubKey, Identifier: at.Identifier})
}

// NotFound answers 404 with a page that says what could be found here.
func (p *Pages) NotFound(w http.ResponseWriter, r *http.Request) {
	p.show(w, r, http.StatusNotFound, "missing", p.about())
}

func (p *Pages) broken(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.Log.Warn("a page could not be rendered", "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Retry-After", "10")
	http.Error(w, "this page cannot be shown at the moment; try again later", http.StatusServiceUnavailable)
}

func (p *Pages) show(w http.ResponseWriter, r *http.Request, status int, page string, data any) {
	p.render(w, r, status, page, data, "")
}

// render makes a page and sends it. tag names it (ETag); without one its content does.
func (p *Pages) render(w http.ResponseWriter, r *http.Request, status int, page string, data any, tag string) {
	var b bytes.Buffer
	if err := p.pages.ExecuteTemplate(&b, page, data); err != nil {
		p.Log.Error("a page's template failed", "page", page, "error", err)
		http.Error(w, "this page cannot be shown", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, icon := p.now()
	h.Set("Content-Security-Policy", policy(icon))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	send(w, r, status, []byte(harmless(b.String())), tag)
}

// leastPacked is the size from which an answer is worth being packed, in bytes.
const leastPacked = 1 << 10

// packers are kept for use again: to make one takes a megabyte of memory.
var packers = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

// send sends a page, packed where the client takes that, or says that it has not changed. tag names
// it (ETag); without one its content does.
func send(w http.ResponseWriter, r *http.Request, status int, page []byte, tag string) {
	h := w.Header()
	if status == http.StatusOK {
		if tag == "" {
			tag = etag(page)
		}
		if unchanged(w, r, tag) {
			return
		}
		h.Set("ETag", tag)
		h.Set("Cache-Control", askAgain)
	}
	h.Add("Vary", "Accept-Encoding")
	if len(page) >= leastPacked && takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		w.WriteHeader(status)
		packed := packers.Get().(*gzip.Writer)
		packed.Reset(w)
		packed.Write(page)
		packed.Close()
		packed.Reset(nil) // who keeps it keeps no connection
		packers.Put(packed)
		return
	}
	w.WriteHeader(status)
	w.Write(page)
}

// takesGzip reports whether a client takes gzip.
func takesGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			value := strings.TrimPrefix(strings.ReplaceAll(quality, " ", ""), "q=")
			return strings.Trim(value, "0.") != "" || value == ""
		}
	}
	return false
}

// robots is what crawlers are told: the page of each repository, and none of its files and commits,
// which a crawler would read for days.
const robots = "User-agent: *\nDisallow: /*?\nDisallow: /*.git/\n"

// RobotsPath is where crawlers look.
const RobotsPath = "/robots.txt"

// Robots answers crawlers.
func (p *Pages) Robots(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, robots)
}
