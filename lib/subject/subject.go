// Package subject reads what an operator's command is about: an event, an author, a repository, an
// identifier or a relay. Every command takes the same forms. The package does not know whether the
// subject exists.
package subject

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// Kind is a word for what a subject is.
type Kind string

// The kinds of subjects.
const (
	Event      Kind = "event"
	Author     Kind = "author"
	Repository Kind = "repository"
	Identifier Kind = "identifier" // of any owner
	Relay      Kind = "relay"
)

// Subject is one of the kinds. The fields of the others are empty.
type Subject struct {
	Kind       Kind
	Event      string // id, 64 hex digits
	PubKey     string // of an author, or of the owner of a repository, 64 hex digits
	Identifier string // of a repository, or of repositories of any owner
	Relay      nostr.RelayURL
}

// prefixIdentifier begins the name of an identifier. Without it a misspelt name of something else
// would be taken for an identifier.
const prefixIdentifier = "identifier:"

// Forms lists the forms of a subject, for help and errors.
const Forms = "the address of a repository (https://… or nostr://…), npub1…/identifier, npub1…, naddr1…, nevent1…, " +
	"note1…, an event id of 64 hex digits, identifier:NAME, or a relay (wss://…)"

// Parse reads a subject. Space around it and a prefix "nostr:" are ignored. An error is a sentence
// that lists the forms.
func Parse(text string) (Subject, error) {
	name := strings.TrimSpace(text)
	if !strings.HasPrefix(name, "nostr://") {
		name = strings.TrimPrefix(name, "nostr:")
	}
	s, err := parse(name)
	if err != nil {
		return Subject{}, fmt.Errorf("%.200q is not understood: %w; want %s", text, err, Forms)
	}
	return s, nil
}

func parse(name string) (Subject, error) {
	if identifier, is := strings.CutPrefix(name, prefixIdentifier); is {
		return Subject{Kind: Identifier, Identifier: identifier}, nostr.CheckIdentifier(identifier)
	}
	if scheme, rest, is := strings.Cut(name, "://"); is {
		return parseURL(strings.ToLower(scheme), name, rest)
	}
	if id := strings.ToLower(name); nostr.IsHex64(id) {
		return Subject{Kind: Event, Event: id}, nil
	}
	if ref, err := nostr.ParseRepoRef(name); err == nil {
		return repository(ref.PubKey, ref.Identifier)
	}
	first, rest, slash := strings.Cut(name, "/")
	if slash && !isNIP19(first) && strings.Contains(rest, "npub1") { // an address without its scheme
		return parseAddress(rest)
	}
	owner, err := parsePerson(first)
	switch {
	case err != nil:
		return Subject{}, err
	case !slash:
		return owner, nil
	case owner.Kind != Author:
		return Subject{}, fmt.Errorf("before the slash stands no author but a %s", owner.Kind)
	case strings.HasSuffix(rest, ".git"):
		return parseAddress(name)
	}
	return repository(owner.PubKey, rest)
}

// parseURL reads the address of a relay or a repository. name is the whole address, rest follows
// its scheme.
func parseURL(scheme, name, rest string) (Subject, error) {
	switch scheme {
	case "ws", "wss":
		relay, err := nostr.NormalizeRelayURL(name)
		return Subject{Kind: Relay, Relay: relay}, err
	case "http", "https":
		u, err := url.Parse(name)
		if err != nil {
			return Subject{}, errors.New("it is no legal URL")
		}
		return parseAddress(u.EscapedPath())
	case "nostr": // nostr://<npub>/<relay>/<identifier>, the relay may be missing
		npub, path, _ := strings.Cut(strings.TrimRight(rest, "/"), "/")
		return parseAddress(npub + "/" + path[strings.LastIndex(path, "/")+1:])
	}
	return Subject{}, errors.New("addresses begin with https, http, nostr, wss or ws")
}

// parseAddress reads a path of a repository: <npub>/<identifier>, with or without .git, and
// with anything before the npub and behind the repository.
func parseAddress(path string) (Subject, error) {
	before, repo, found := strings.Cut(path, "npub1")
	if !found || before != "" && !strings.HasSuffix(before, "/") {
		return Subject{}, errors.New("its path has no npub")
	}
	repo = strings.TrimRight("npub1"+repo, "/")
	if !strings.Contains(repo, ".git") {
		repo += ".git"
	}
	at, err := nostr.ParseRepositoryPath(repo)
	if err != nil {
		return Subject{}, err
	}
	return repository(at.PubKey, at.Identifier)
}

// isNIP19 reports whether a text begins as the encodings of NIP-19 do.
func isNIP19(text string) bool {
	prefix, _, _ := strings.Cut(text, "1")
	switch prefix {
	case "npub", "nprofile", "naddr", "note", "nevent":
		return true
	}
	return false
}

// parsePerson reads a public key in hex before a slash, or an encoding of NIP-19.
func parsePerson(text string) (Subject, error) {
	if key := strings.ToLower(text); nostr.IsHex64(key) {
		return Subject{Kind: Author, PubKey: key}, nil
	}
	if !isNIP19(text) {
		return Subject{}, fmt.Errorf("it has none of the forms; for repositories of that name by any owner write %s%.200s",
			prefixIdentifier, text)
	}
	kind, value, err := nip19.Decode(text)
	if err != nil {
		return Subject{}, errors.New("a letter of it is wrong or missing")
	}
	switch v := value.(type) {
	case string:
		if kind == "note" {
			return Subject{Kind: Event, Event: v}, nil
		}
		return Subject{Kind: Author, PubKey: v}, nil
	case gonostr.ProfilePointer:
		return Subject{Kind: Author, PubKey: v.PublicKey}, nil
	case gonostr.EventPointer:
		return Subject{Kind: Event, Event: v.ID}, nil
	case gonostr.EntityPointer:
		if v.Kind == nostr.KindAnnouncement {
			return repository(v.PublicKey, v.Identifier)
		}
	}
	return Subject{}, errors.New("it names no author, repository or event")
}

func repository(pubkey, identifier string) (Subject, error) {
	return Subject{Kind: Repository, PubKey: pubkey, Identifier: identifier}, nostr.CheckIdentifier(identifier)
}

// Ref is the repository; false for a subject of another kind.
func (s Subject) Ref() (nostr.RepoRef, bool) {
	return nostr.RepoRef{PubKey: s.PubKey, Identifier: s.Identifier}, s.Kind == Repository
}

// String writes the subject as commands, logs and JSON do. Parse reads it back.
func (s Subject) String() string {
	npub, _ := nip19.EncodePublicKey(s.PubKey)
	switch s.Kind {
	case Event:
		return s.Event
	case Author:
		return npub
	case Identifier:
		return prefixIdentifier + s.Identifier
	case Relay:
		return string(s.Relay)
	}
	ref, _ := s.Ref()
	return ref.Name()
}
