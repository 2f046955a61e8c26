package pages

import (
	"context"
	"encoding/json"
	"errors"
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

// hasName reports whether others can look up names at our domain: all of it is ours, and it is a
// name that is known outside.
func hasName(s config.Settings) bool { return s.BasePath == "" && s.HasPublicName() }

// OwnName answers with the service's key, and with nothing of what is here.
func (p *Pages) OwnName(w http.ResponseWriter, r *http.Request) {
	sendNames(w, map[string]any{"names": p.ownName(r)})
}

// ownName is the service's key by its name, if that is asked for.
func (p *Pages) ownName(r *http.Request) map[string]string {
	names := map[string]string{}
	if name := r.URL.Query().Get("name"); !r.URL.Query().Has("name") || strings.EqualFold(name, ownName) {
		names[ownName] = p.Owner
	}
	return names
}

// Names answers with the service's key, and with the repository that `path` names if it is served
// here. A path that is not answers without that part.
func (p *Pages) Names(w http.ResponseWriter, r *http.Request, client string) {
	answer := map[string]any{"names": p.ownName(r)}
	query := r.URL.Query()
	if !query.Has("path") {
		p.listNames(answer)
	}
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
	sendNames(w, answer)
}

func sendNames(w http.ResponseWriter, answer map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(answer) // only the client may fail
}

// maxNames bounds the list of all names, in bytes: clients read no longer document (NIP-AD).
const maxNames = 256<<10 - 1<<10

// listNames adds the names that the operator gave to an answer, as long as there is room.
func (p *Pages) listNames(answer map[string]any) {
	size := 0
	for _, n := range p.Bans.Names() {
		if p.Bans.Repository(n.Repo) != nil {
			continue
		}
		entry := p.filterFor(n.Repo)
		text, _ := json.Marshal(entry) // of strings
		if size += 2*len(text) + 2*len(n.Name) + 64; size > maxNames {
			return
		}
		answer["/"+n.Name], answer["/"+n.Name+".git"] = entry, entry
	}
}

// filterFor is what nostr.json says of a repository.
func (p *Pages) filterFor(ref nostr.RepoRef) *repositoryFilter {
	found := &repositoryFilter{Relays: []string{p.site.Relay}}
	found.Filter.Authors, found.Filter.Kinds = []string{ref.PubKey}, []int{nostr.KindAnnouncement}
	found.Filter.Identifiers = []string{ref.Identifier}
	return found
}

// Named returns the address of a repository that the operator gave a name, for a path below that
// name: of its page, or of what git asks for first, from where git goes on by itself. Empty: the
// path is below no name.
func (p *Pages) Named(path string) (address string) {
	name, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	ref, named := p.Bans.NamedRepository(strings.TrimSuffix(name, ".git"))
	if !named || p.Settings.PrivateMode || rest != "" && rest != "info/refs" {
		return ""
	}
	address = p.Settings.BasePath + nostr.RepositoryURLPath(nostr.Npub(ref.PubKey), ref.Identifier)
	return strings.TrimSuffix(address+"/"+rest, "/")
}

// repositoryAt finds the served repository at a path, with or without ".git"; nil where none is.
func (p *Pages) repositoryAt(ctx context.Context, path, client string) (*repositoryFilter, error) {
	path = strings.TrimSuffix("/"+strings.Trim(path, "/"), ".git") + ".git"
	at, err := nostr.ParseRepositoryPath(path)
	ref, named := p.Bans.NamedRepository(strings.TrimSuffix(path[1:], ".git"))
	if named {
		at, err = nostr.RepositoryPath{PubKey: ref.PubKey, Identifier: ref.Identifier}, nil
	}
	ref = nostr.RepoRef{PubKey: at.PubKey, Identifier: at.Identifier}
	if err != nil || at.PRs || at.Service != "" || p.Bans.Repository(ref) != nil {
		return nil, nil
	}
	err = p.look(ctx, client, func(ctx context.Context, v *eventdb.View) (err error) {
		_, err = p.repository(v, at.PubKey, at.Identifier)
		return err
	})
	if errors.Is(err, errNotHosted) || errors.Is(err, errElsewhere) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return p.filterFor(ref), nil
}
