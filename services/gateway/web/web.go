// Package web shows people in a browser what the service is and what it hosts (GRASP-01: a page at a repository's address, 404 for what
// is not hosted). Pages are plain HTML without scripts or anything from elsewhere.
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
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nip34"
)

//go:embed pages.html
var source string

//go:embed style.css
var style string

// listFor is how long the list on the front page is kept, so that a busy front page does not read the index for every visitor.
const listFor = 2 * time.Second

// answerIn is the longest time for making a page.
const answerIn = 10 * time.Second

// Pages makes the pages.
type Pages struct {
	site   site
	domain string
	index  *eventdb.DB
	log    *slog.Logger
	pages  *template.Template
	policy string // Content-Security-Policy

	mu     sync.Mutex // guards what follows
	list   []listed
	listed time.Time
}

// site is what all pages know.
type site struct {
	Name, Description, Criteria string
	Relay, Base                 string // ws and http URL of the service
	Style                       template.CSS
}

// New makes the pages of a service. criteria says in a sentence which repositories it hosts.
func New(s config.Settings, criteria string, index *eventdb.DB, log *slog.Logger) (*Pages, error) {
	pages, err := template.New("pages").Parse(source)
	if err != nil {
		return nil, fmt.Errorf("read the pages' templates: %w", err)
	}
	secure := ""
	if !local(s.Domain) {
		secure = "s"
	}
	hash := sha256.Sum256([]byte(style))
	return &Pages{
		site: site{
			Name: s.RelayName, Description: s.RelayDescription, Criteria: criteria,
			Relay: "ws" + secure + "://" + s.Domain, Base: "http" + secure + "://" + s.Domain,
			Style: template.CSS(style),
		},
		domain: s.Domain, index: index, log: log, pages: pages,
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}, nil
}

// local says whether a domain is this machine's own, which is served without TLS.
func local(domain string) bool {
	host := domain
	if h, _, err := net.SplitHostPort(domain); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
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

// recent is the list of the front page.
func (p *Pages) recent(ctx context.Context) ([]listed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.listed) < listFor {
		return p.list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	v := p.index.View()
	defer v.Close()
	list, err := p.hosted(ctx, v)
	if err != nil {
		return nil, err
	}
	p.list, p.listed = list, time.Now()
	return list, nil
}

// Repository answers with the page of a repository, or 404 if none is accepted there: what is held is not shown either.
func (p *Pages) Repository(w http.ResponseWriter, r *http.Request, at nip34.RepositoryPath) {
	if at.PRs {
		p.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerIn)
	defer cancel()
	v := p.index.View()
	defer v.Close()
	repo, err := p.repository(ctx, v, at.PubKey, at.Identifier)
	switch {
	case errors.Is(err, errNotHosted):
		p.NotFound(w, r)
	case err != nil:
		p.broken(w, r, err)
	default:
		p.show(w, r, http.StatusOK, "repository", struct {
			*repository
			Base  string
			Style template.CSS
			Nostr template.URL
		}{repo, p.site.Base, p.site.Style, template.URL("nostr:" + repo.Naddr)})
	}
}

// NotFound answers 404 with a page that says what could be found here.
func (p *Pages) NotFound(w http.ResponseWriter, r *http.Request) {
	p.show(w, r, http.StatusNotFound, "missing", p.site)
}

func (p *Pages) broken(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		p.log.Warn("a page could not be made", "path", r.URL.Path, "error", err)
	}
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
