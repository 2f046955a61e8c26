// Package web shows people in a browser what the service is and what it hosts (GRASP-01: a page at
// a repository's address, 404 for what is not hosted). Pages are plain HTML with nothing from
// elsewhere; a script of a few lines copies what must be copied.
package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/gateway/info"
)

//go:embed pages.html
var source string

//go:embed style.css
var style string

//go:embed copy.js
var script string

// listFor is how long the list on the front page is kept, so that a busy front page does not read
// the index for every visitor.
const listFor = 2 * time.Second

// answerIn is the longest time for making a page.
const answerIn = 10 * time.Second

// Holder knows which repositories are here, also those that wait for their git data.
type Holder interface {
	// Hosts reports whether a repository is here, served or held; client is who asks. An error: it
	// cannot be told now.
	Hosts(ctx context.Context, at nostr.RepositoryPath, client string) (bool, error)
}

// Options is what the pages need.
type Options struct {
	Settings config.Settings
	Criteria string // a sentence that says which repositories are hosted
	Icon     string // URL
	Index    *eventdb.DB
	Work     *limit.Fair // over the index
	Held     Holder
	Log      *slog.Logger
}

// Pages makes the pages.
type Pages struct {
	site   site
	rules  config.Rules
	index  *eventdb.DB
	work   *limit.Fair
	held   Holder
	log    *slog.Logger
	pages  *template.Template
	policy string // Content-Security-Policy
	prs    bool   // contributors' pull requests are taken

	mu     sync.Mutex // guards what follows
	list   []listed
	listed time.Time
}

// site is what all pages know.
type site struct {
	Name, Description, Criteria string
	Relay, Base                 string // ws and http URL of the service
	Style                       template.CSS
	Script                      template.JS
}

// New makes the pages of a service.
func New(o Options) (*Pages, error) {
	pages, err := template.New("pages").Parse(source)
	if err != nil {
		return nil, fmt.Errorf("read the pages' templates: %w", err)
	}
	s := o.Settings
	rules, err := s.Hosting()
	if err != nil {
		return nil, err
	}
	return &Pages{
		site: site{
			Name: s.DisplayName(), Description: s.RelayDescription, Criteria: o.Criteria,
			Relay: info.Address("ws", s.Domain), Base: info.Address("http", s.Domain),
			Style: template.CSS(style), Script: template.JS(script),
		},
		rules: rules, index: o.Index, work: o.Work, held: o.Held, log: o.Log, pages: pages, policy: policy(o.Icon), prs: s.ContributorPRs,
	}, nil
}

// policy is the Content-Security-Policy: our own style and script, the icon, and nothing else.
func policy(icon string) string {
	images := "'self'"
	if u, err := url.Parse(icon); err == nil && u.Host != "" {
		images += " " + u.Scheme + "://" + u.Host
	}
	return "default-src 'none'; style-src " + hashOf(style) + "; script-src " + hashOf(script) + "; img-src " + images +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

func hashOf(text string) string {
	hash := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}

// Home answers with the front page.
func (p *Pages) Home(w http.ResponseWriter, r *http.Request) {
	list, err := p.recent(r.Context())
	if err != nil {
		p.broken(w, r, err)
		return
	}
	p.show(w, r, http.StatusOK, "home", struct {
		site
		Repositories []listed
		Most         int
	}{p.site, list, maxListed})
}

// recent is the repositories that the front page shows.
func (p *Pages) recent(ctx context.Context) ([]listed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.listed) < listFor {
		return p.list, nil
	}
	var list []listed
	err := p.look(ctx, "", func(ctx context.Context, v *eventdb.View) (err error) {
		list, err = p.hosted(ctx, v)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.list, p.listed = list, time.Now()
	return list, nil
}

// look looks at the index when it is the client's turn.
func (p *Pages) look(ctx context.Context, client string, at func(context.Context, *eventdb.View) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	turn, err := p.work.Turn(ctx, client)
	if err != nil {
		return fmt.Errorf("wait for a look at the index: %w", err)
	}
	defer turn.Pause()
	v := p.index.View()
	defer v.Close()
	return at(ctx, v.Yielding(turn.Yield))
}

// Repository answers with the page of a repository. Of one that is held it shows only what the
// address itself says; for one that is not here it answers 404.
func (p *Pages) Repository(w http.ResponseWriter, r *http.Request, at nostr.RepositoryPath, client string) {
	if at.PRs {
		p.contributions(w, r, at)
		return
	}
	var repo *repository
	err := p.look(r.Context(), client, func(ctx context.Context, v *eventdb.View) (err error) {
		repo, err = p.repository(ctx, v, at.PubKey, at.Identifier)
		return err
	})
	switch {
	case errors.Is(err, errNotHosted):
		p.sparse(w, r, at, client, "held")
	case errors.Is(err, errElsewhere):
		p.sparse(w, r, at, client, "elsewhere")
	case err != nil:
		p.broken(w, r, err)
	default:
		p.show(w, r, http.StatusOK, "repository", struct {
			*repository
			Site  site
			Nostr template.URL
		}{repo, p.site, template.URL("nostr:" + repo.Naddr)})
	}
}

// contributions answers with the page of an address for contributors' pull requests (GRASP-06).
// Every such address can be cloned, also where nothing has been pushed yet.
func (p *Pages) contributions(w http.ResponseWriter, r *http.Request, at nostr.RepositoryPath) {
	owner, err := nip19.EncodePublicKey(at.PubKey)
	if !p.prs || err != nil {
		p.NotFound(w, r)
		return
	}
	p.bare(w, r, at.Identifier, owner, "/prs"+nostr.RepositoryURLPath(owner, at.Identifier), "contributions")
}

// bare shows a page of a repository that says only what the address says.
func (p *Pages) bare(w http.ResponseWriter, r *http.Request, identifier, owner, path, page string) {
	p.show(w, r, http.StatusOK, page, struct {
		site
		Identifier, Owner, Path string
	}{p.site, identifier, owner, path})
}

// sparse answers with a page that shows only what the address says, if a worker has the repository:
// its git data is awaited, or it was archived by earlier settings.
func (p *Pages) sparse(w http.ResponseWriter, r *http.Request, at nostr.RepositoryPath, client, page string) {
	held, err := p.held.Hosts(r.Context(), at, client)
	if err != nil {
		p.broken(w, r, err)
		return
	}
	owner, err := nip19.EncodePublicKey(at.PubKey)
	if !held || err != nil {
		p.NotFound(w, r)
		return
	}
	p.bare(w, r, at.Identifier, owner, nostr.RepositoryURLPath(owner, at.Identifier), page)
}

// NotFound answers 404 with a page that says what could be found here.
func (p *Pages) NotFound(w http.ResponseWriter, r *http.Request) {
	p.show(w, r, http.StatusNotFound, "missing", p.site)
}

func (p *Pages) broken(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.log.Warn("a page could not be rendered", "path", r.URL.Path, "error", err)
	}
	w.Header().Set("Retry-After", "10")
	http.Error(w, "this page cannot be shown at the moment; try again later", http.StatusServiceUnavailable)
}

func (p *Pages) show(w http.ResponseWriter, r *http.Request, status int, page string, data any) {
	var b bytes.Buffer
	if err := p.pages.ExecuteTemplate(&b, page, data); err != nil {
		p.log.Error("a page's template failed", "page", page, "error", err)
		http.Error(w, "this page cannot be shown", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		w.Write(b.Bytes())
	}
}
