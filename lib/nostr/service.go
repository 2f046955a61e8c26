package nostr

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"
)

// parseDomain reads the domain of a GRASP service as settings and announcements name it: a host,
// and a port if it is served at another than the scheme's own.
func parseDomain(domain string) (hostedURL, error) {
	u, err := parseURL("//"+domain, maxRelayURL)
	if err == nil && u.URL.String() != "//"+u.Host {
		err = errors.New("it is more than a host and a port")
	}
	if err != nil {
		return hostedURL{}, fmt.Errorf("domain %q: %w", domain, err)
	}
	return u, nil
}

// NormalizeDomain brings the domain of a GRASP service, "host" or "host:port", to its one spelling,
// or says why it is none.
func NormalizeDomain(domain string) (string, error) {
	u, err := parseDomain(domain)
	if err != nil || u.port == "" {
		return u.host, err
	}
	return u.host + ":" + u.port, nil
}

// parseService reads the address of a GRASP service: its domain, and the path below which all of it
// lies; "" is the root of the domain.
func parseService(service string) (domain hostedURL, base string, err error) {
	host, path, _ := strings.Cut(service, "/")
	if domain, err = parseDomain(host); err != nil {
		return domain, "", err
	}
	base, err = NormalizeBasePath(path)
	return domain, base, err
}

// NormalizeService brings the address of a GRASP service, "host[:port][/path]", to its one spelling,
// or says why it is none.
func NormalizeService(service string) (string, error) {
	host, path, _ := strings.Cut(service, "/")
	domain, err := NormalizeDomain(host)
	if err != nil {
		return "", err
	}
	base, err := NormalizeBasePath(path)
	return domain + base, err
}

// NormalizeBasePath brings the path below which a service lies to its one spelling: "" for the root,
// else a slash before each segment and none at the end. Segments have letters, digits and "-._~", so
// that a path has one spelling in a URL too. The first one is no npub, as in the address of a
// repository.
func NormalizeBasePath(path string) (string, error) {
	path = strings.Trim(path, "/")
	if path == "" {
		return "", nil
	}
	for segment := range strings.SplitSeq(path, "/") {
		isOther := func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~", c)
		}
		if segment == "" || segment == "." || segment == ".." || strings.ContainsFunc(segment, isOther) ||
			strings.HasPrefix(segment, "npub1") {
			return "", errors.New("its path is not of segments with letters, digits, '-', '.', '_' and '~'")
		}
	}
	return "/" + path, nil
}

// OnDomain reports whether a URL (relay or clone) leads to a service: to its host, and below its
// path if it has one. The service may have a port; without one, the scheme's own port is meant.
// Anything that is not a URL leads nowhere.
func OnDomain(rawURL, service string) bool {
	u, err := parseURL(rawURL, maxCloneURL)
	return err == nil && u.on(service)
}

// ListsService reports whether the announcement lists the service at that address, in `relays` and
// in `clone`. The path of a clone URL must not be the address of another repository. The usual path
// is `/<npub of the owner>/<identifier>.git`, below the service's own path; a path of another form
// counts too. The scheme (http, https, ws, wss), slashes at the end and how the identifier is
// percent-encoded make no difference.
func (a *Announcement) ListsService(service string) bool {
	return slices.ContainsFunc(a.Relays, func(given string) bool {
		u, err := parseRelayURL(given)
		return err == nil && u.on(service)
	}) && slices.ContainsFunc(a.Clone, func(given string) bool {
		path, ok := PathBelow(given, service)
		return ok && !isOfOtherThan(a.Ref, path)
	})
}

// HasCloneOn reports whether one of the clone URLs leads to the service, to any repository.
func (a *Announcement) HasCloneOn(service string) bool {
	return slices.ContainsFunc(a.Clone, func(given string) bool {
		_, ok := PathBelow(given, service)
		return ok
	})
}

// PRServiceIdentifiers are the identifiers of those repositories that the pull request is meant for
// and for which it names `<scheme>://<service>/prs/<npub of its author>/<identifier>.git` in `clone`
// (GRASP-06): each once, in the order of the clone URLs. The scheme, slashes at the end and how the
// identifier is percent-encoded make no difference.
func (p *PullRequest) PRServiceIdentifiers(service string) []string {
	var identifiers distinct[string]
	for _, given := range p.Clone {
		path, ok := PathBelow(given, service)
		if !ok {
			continue
		}
		for _, meant := range meanings(path) {
			rest, isPRs := strings.CutPrefix(meant, "/prs/")
			npub, rest, _ := strings.Cut(rest, "/")
			identifier, isRepo := strings.CutSuffix(rest, ".git")
			if isPRs && isRepo && keyOf(npub) == p.Event.PubKey &&
				slices.ContainsFunc(p.Repos, func(r RepoRef) bool { return r.Identifier == identifier }) {
				identifiers.add(identifier)
				break
			}
		}
	}
	return identifiers.items
}

// keyOf is the public key that an npub says; "": it is none.
func keyOf(npub string) string {
	if prefix, key, err := nip19.Decode(npub); err == nil && prefix == "npub" {
		return key.(string)
	}
	return ""
}

// isOfOtherThan reports whether a path is the address of a repository other than ref, or of one
// below /prs/, which no announcement lists.
func isOfOtherThan(ref RepoRef, path string) bool {
	other := strings.HasPrefix(path, "/prs/")
	for _, meant := range meanings(path) {
		npub, rest, _ := strings.Cut(strings.TrimPrefix(meant, "/"), "/")
		identifier, isRepo := strings.CutSuffix(rest, ".git")
		key := keyOf(npub)
		if isRepo && key == ref.PubKey && identifier == ref.Identifier {
			return false
		}
		other = other || isRepo && key != ""
	}
	return other
}

// meanings are the paths, not encoded, that a path as it was written may mean: itself, and what it
// is percent-decoded.
func meanings(path string) []string {
	decoded, err := url.PathUnescape(path)
	if err != nil || decoded == path || strings.ContainsAny(path, "?#") {
		return []string{path}
	}
	return []string{path, decoded}
}

// PathBelow is the path of a clone URL below that of the service to which it leads, without
// slashes at its end. The path is taken as it stands: clients that do not encode identifiers write
// spaces and percent signs into it.
func PathBelow(given, service string) (path string, ok bool) {
	given = strings.Trim(given, " ")
	if len(given) > maxCloneURL {
		return "", false
	}
	domain, base, err := parseService(service)
	if err != nil {
		return "", false
	}
	scheme, rest, _ := strings.Cut(given, "://")
	host, path, _ := strings.Cut(rest, "/")
	u, err := parseURL(scheme+"://"+host, maxCloneURL)
	if err != nil || defaultPort(u.Scheme) == "" || u.RawQuery != "" || u.Fragment != "" || !u.on(domain.Host) {
		return "", false
	}
	path = strings.TrimRight("/"+path, "/")
	below, ok := strings.CutPrefix(path, base)
	return below, ok && (base == "" || strings.HasPrefix(below, "/"))
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
	PRs        bool // below /prs (GRASP-06)
	// Service is what git asks for: "", "HEAD", "info/refs", "git-upload-pack" or "git-receive-pack";
	// or "archive", which is all files of the tag Tag.
	Service, Tag string
}

// ServiceArchive asks for the files of a tag in one file.
const ServiceArchive = "archive"

const archiveFolder, archiveEnd = "/archive/", ".tar.gz"

// ArchivePath is where the files of a tag are, below the path of a repository.
func ArchivePath(tag string) string { return archiveFolder + url.PathEscape(tag) + archiveEnd }

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
		if repository, ok := strings.CutSuffix(rest, "/"+service); ok &&
			strings.HasSuffix(strings.TrimRight(repository, "/"), ".git") {
			rest, p.Service = strings.TrimRight(repository, "/"), service
			break
		}
	}
	if tagged, is := strings.CutSuffix(rest, archiveEnd); is && p.Service == "" && !p.PRs {
		if at := strings.LastIndex(tagged, ".git"+archiveFolder); at >= 0 {
			tag, err := url.PathUnescape(tagged[at+len(".git"+archiveFolder):])
			if err != nil {
				return RepositoryPath{}, errors.New("the tag in the path is not percent-encoded as it should be")
			}
			rest, p.Service, p.Tag = tagged[:at]+".git", ServiceArchive, tag
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
	if p.PubKey = keyOf(npub); p.PubKey == "" {
		return RepositoryPath{}, errors.New("the path does not start with a legal npub")
	}
	return p, nil
}
