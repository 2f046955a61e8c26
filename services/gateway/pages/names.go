package pages

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// NamesPath is where the names of this domain are read: NIP-05 for the service's key, and a draft
// (NIP-AD) for repositories.
const NamesPath = "/.well-known/nostr.json"

// ownName is the name of the service's key (NIP-05).
const ownName = "_"

// repositoryFilter finds the announcement of a repository that has a path here.
type repositoryFilter struct {
	Filter struct {
		Authors     []string `json:"authors"`
		Kinds       []int    `json:"kinds"`
		Identifiers []string `json:"#d"`
	} `json:"filter"`
	Relays []string `json:"relays"`
}

// hasName reports whether others can look up names at our domain: it has a name of its own, which
// is neither an IP address nor local.
func hasName(s config.Settings) bool {
	host, _, err := net.SplitHostPort(s.Domain)
	if err != nil {
		host = s.Domain
	}
	return net.ParseIP(strings.Trim(host, "[]")) == nil && host != "localhost" && !strings.HasSuffix(host, ".local") &&
		!strings.HasSuffix(host, ".localhost")
}

// Names answers with the service's key, and with the repository that `path` names if it is served
// here. A path that is not answers without that part.
func (p *Pages) Names(w http.ResponseWriter, r *http.Request, client string) {
	query := r.URL.Query()
	names := map[string]string{}
	if name := query.Get("name"); !query.Has("name") || strings.EqualFold(name, ownName) {
		names[ownName] = p.Owner
	}
	answer := map[string]any{"names": names}
	if path := query.Get("path"); path != "" && path != "names" {
		found, err := p.repositoryAt(r.Context(), path, client)
		if err != nil {
			p.broken(w, r, err)
			return
		}
		if found != nil {
			answer[path] = found
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(answer) // only the client may fail
}

// repositoryAt finds the served repository at a path, with or without ".git"; nil where none is.
func (p *Pages) repositoryAt(ctx context.Context, path, client string) (*repositoryFilter, error) {
	path = strings.TrimSuffix("/"+strings.Trim(path, "/"), ".git") + ".git"
	at, err := nostr.ParseRepositoryPath(path)
	ref := nostr.RepoRef{PubKey: at.PubKey, Identifier: at.Identifier}
	if err != nil || at.PRs || at.Service != "" || p.Bans.Repository(ref) != nil {
		return nil, nil
	}
	err = p.look(ctx, client, func(ctx context.Context, v *eventdb.View) (err error) {
		_, err = p.repository(ctx, v, at.PubKey, at.Identifier)
		return err
	})
	if errors.Is(err, errNotHosted) || errors.Is(err, errElsewhere) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := &repositoryFilter{Relays: []string{p.site.Relay}}
	found.Filter.Authors, found.Filter.Kinds = []string{at.PubKey}, []int{nostr.KindAnnouncement}
	found.Filter.Identifiers = []string{at.Identifier}
	return found, nil
}
