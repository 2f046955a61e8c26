package nostr

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"
)

// serviceDomain is a GRASP service as it is named in settings and in announcements: a host, and a
// port if it is served at another than the scheme's own.
type serviceDomain struct{ host, port string }

func parseDomain(domain string) (serviceDomain, error) {
	host, port := domain, ""
	if hasPort(domain) {
		colon := strings.LastIndexByte(domain, ':')
		host, port = domain[:colon], domain[colon+1:]
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return serviceDomain{}, fmt.Errorf("the port of %q is not a number from 1 to 65535", domain)
		}
		port = strconv.FormatUint(n, 10)
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	host, err := normalizeHost(host)
	if err != nil {
		return serviceDomain{}, fmt.Errorf("domain %q: %w", domain, err)
	}
	return serviceDomain{host: host, port: port}, nil
}

// NormalizeDomain brings the domain of a GRASP service, "host" or "host:port", to its one spelling,
// or says why it is none.
func NormalizeDomain(domain string) (string, error) {
	d, err := parseDomain(domain)
	if err != nil {
		return "", err
	}
	if d.port == "" {
		return d.host, nil
	}
	return d.host + ":" + d.port, nil
}

// OnDomain reports whether a URL (relay or clone) leads to the host of a service. The domain may
// carry a port; without one, the scheme's own port is meant. Anything that is not a URL leads
// nowhere.
func OnDomain(rawURL, domain string) bool {
	d, err := parseDomain(domain)
	if err != nil {
		return false
	}
	u, err := parseURL(rawURL, maxCloneURL)
	return err == nil && u.on(d)
}

// ListsService reports whether the announcement lists the service at that domain: in `clone` and in
// `relays`.
func (a *Announcement) ListsService(domain string) bool {
	return a.ListsServiceRelay(domain) && a.ListsServiceClone(domain)
}

// ListsServiceRelay reports whether one of the relays is at the domain of the service.
func (a *Announcement) ListsServiceRelay(domain string) bool {
	d, err := parseDomain(domain)
	if err != nil {
		return false
	}
	for _, given := range a.Relays {
		given = strings.Trim(given, " ")
		if !strings.Contains(given, "://") {
			given = "wss://" + given
		}
		if u, err := parseURL(given, maxRelayURL); err == nil && defaultPort(u.Scheme) != "" && u.on(d) {
			return true
		}
	}
	return false
}

// ListsServiceClone reports whether one of the clone URLs is at the domain, and its path is not the
// address of another repository. The usual path is `/<npub of the owner>/<identifier>.git`; a path
// of another form counts too. The scheme (http, https, ws, wss), slashes at the end and how the
// identifier is percent-encoded make no difference.
func (a *Announcement) ListsServiceClone(domain string) bool {
	return a.anyCloneOn(domain, func(p writtenPath) bool { return !p.isOfOtherThan(a.Ref) })
}

// HasCloneOn reports whether one of the clone URLs is at the domain, with any path.
func (a *Announcement) HasCloneOn(domain string) bool {
	return a.anyCloneOn(domain, func(writtenPath) bool { return true })
}

func (a *Announcement) anyCloneOn(domain string, matches func(writtenPath) bool) bool {
	d, err := parseDomain(domain)
	if err != nil {
		return false
	}
	for _, given := range a.Clone {
		if path, ok := servicePath(given, d); ok && matches(path) {
			return true
		}
	}
	return false
}

// PRServiceIdentifiers are the identifiers of those repositories that the pull request is meant for
// and for which it names `<scheme>://<domain>/prs/<npub of its author>/<identifier>.git` in `clone`
// (GRASP-06): each once, in the order of the clone URLs. The scheme, slashes at the end and how the
// identifier is percent-encoded make no difference.
func (p *PullRequest) PRServiceIdentifiers(domain string) []string {
	d, err := parseDomain(domain)
	if err != nil {
		return nil
	}
	var identifiers distinct[string]
	var tagged map[string]bool
	prefix := ""
	for _, given := range p.Clone {
		path, ok := servicePath(given, d)
		if !ok || !strings.HasPrefix(string(path), "/prs/") {
			continue
		}
		if tagged == nil {
			npub, err := nip19.EncodePublicKey(p.Event.PubKey)
			if err != nil {
				return nil
			}
			prefix, tagged = "/prs/"+npub+"/", map[string]bool{}
			for _, repo := range p.Repos {
				tagged[repo.Identifier] = true
			}
		}
		for _, meant := range path.meanings() {
			identifier, ok := strings.CutPrefix(meant, prefix)
			if identifier, is := strings.CutSuffix(identifier, ".git"); ok && is && tagged[identifier] {
				identifiers.add(identifier)
				break
			}
		}
	}
	return identifiers.items
}

// writtenPath is the path of a URL as it was written, without slashes at its end.
type writtenPath string

// isOfOtherThan reports whether the path is the address of a repository other than ref, or of one
// below /prs/, which no announcement lists.
func (p writtenPath) isOfOtherThan(ref RepoRef) bool {
	other := strings.HasPrefix(string(p), "/prs/")
	for _, meant := range p.meanings() {
		npub, identifier, _ := strings.Cut(strings.TrimPrefix(meant, "/"), "/")
		identifier, isRepo := strings.CutSuffix(identifier, ".git")
		prefix, key, err := nip19.Decode(npub)
		if !isRepo || err != nil || prefix != "npub" {
			continue
		}
		if key == ref.PubKey && identifier == ref.Identifier {
			return false
		}
		other = true
	}
	return other
}

// meanings are the paths, not encoded, that this one may mean: itself, and what it is
// percent-decoded.
func (p writtenPath) meanings() []string {
	decoded, err := url.PathUnescape(string(p))
	if err != nil || decoded == string(p) || strings.ContainsAny(string(p), "?#") {
		return []string{string(p)}
	}
	return []string{string(p), decoded}
}

// servicePath is the path of a clone URL if it leads to the service. The path is taken as it
// stands: clients that do not encode identifiers write spaces and percent signs into it.
func servicePath(given string, d serviceDomain) (writtenPath, bool) {
	given = strings.Trim(given, " ")
	if len(given) > maxCloneURL {
		return "", false
	}
	scheme, rest, _ := strings.Cut(given, "://")
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		slash = len(rest)
	}
	u, err := parseURL(scheme+"://"+rest[:slash], maxCloneURL)
	if err != nil || defaultPort(u.Scheme) == "" || u.RawQuery != "" || u.Fragment != "" || !u.on(d) {
		return "", false
	}
	return writtenPath(strings.TrimRight(rest[slash:], "/")), true
}

// RepositoryURLPath is where a service serves a repository: "/<npub>/<identifier>.git", the
// identifier percent-encoded (GRASP-01).
func RepositoryURLPath(npub, identifier string) string {
	return "/" + npub + "/" + EncodeIdentifier(identifier) + ".git"
}

// PRsURLPath is where a service takes contributors' pull requests: "/prs/<npub>/<identifier>.git"
// (GRASP-06).
func PRsURLPath(npub, identifier string) string { return "/prs" + RepositoryURLPath(npub, identifier) }

// RepositoryPath is the path of a request that concerns a repository.
type RepositoryPath struct {
	PubKey     string // 64 hex digits
	Identifier string
	PRs        bool   // below /prs (GRASP-06)
	Service    string // what git asks for: "", "HEAD", "info/refs", "git-upload-pack" or "git-receive-pack"
}

var gitServices = []string{"HEAD", "info/refs", "git-upload-pack", "git-receive-pack"}

// ParseRepositoryPath reads the path of a request (url.URL.EscapedPath) as that of a repository or
// of one of git's services below it. The identifier may be percent-encoded in any legal way.
// Slashes at the end, of the repository too, are ignored: clients that were given an address with a
// slash at the end ask for ".git//info/refs".
func ParseRepositoryPath(escapedPath string) (RepositoryPath, error) {
	rest := strings.TrimRight(escapedPath, "/")
	var p RepositoryPath
	rest, p.PRs = strings.CutPrefix(rest, "/prs/")
	if !p.PRs {
		rest = strings.TrimPrefix(rest, "/")
	}
	npub, rest, found := strings.Cut(rest, "/")
	if !found || !strings.HasPrefix(npub, "npub1") {
		return RepositoryPath{}, errors.New("the path does not start with an npub")
	}
	for _, service := range gitServices {
		if repository, ok := strings.CutSuffix(rest, "/"+service); ok && strings.HasSuffix(strings.TrimRight(repository, "/"), ".git") {
			rest, p.Service = strings.TrimRight(repository, "/"), service
			break
		}
	}
	encoded, found := strings.CutSuffix(rest, ".git")
	if !found {
		return RepositoryPath{}, errors.New("the path does not name a repository: <npub>/<identifier>.git")
	}
	identifier, err := url.PathUnescape(encoded)
	if err != nil {
		return RepositoryPath{}, errors.New("the identifier in the path is not percent-encoded as it should be")
	}
	if err := CheckIdentifier(identifier); err != nil {
		return RepositoryPath{}, err
	}
	p.Identifier = identifier
	prefix, key, err := nip19.Decode(npub)
	if err != nil || prefix != "npub" {
		return RepositoryPath{}, errors.New("the path does not start with a legal npub")
	}
	p.PubKey = key.(string)
	return p, nil
}
