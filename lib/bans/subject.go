package bans

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Subject is what a ban is on: an event; an author; a repository, which has both a key and an
// identifier; or an identifier, of any owner.
type Subject struct {
	Event              string
	PubKey, Identifier string
	// Repositories: those of PubKey alone are meant, as NGIT_REPOSITORY_BLACKLIST names them.
	Repositories bool
}

// Parse reads a subject as people write it: npub1…, npub1…/identifier, naddr1…,
// 30617:<pubkey>:<identifier>, an event id, note1…, nevent1…, or an identifier.
func Parse(name string) (s Subject, err error) {
	name = strings.TrimPrefix(strings.TrimSpace(name), "nostr:")
	if nostr.IsHex64(name) {
		return Subject{Event: name}, nil
	}
	if ref, err := nostr.ParseRepoRef(name); err == nil {
		return Subject{PubKey: ref.PubKey, Identifier: ref.Identifier}, nil
	}
	encoded, identifier, slash := strings.Cut(name, "/")
	prefix, _, _ := strings.Cut(encoded, "1")
	switch prefix {
	case "npub", "nprofile", "naddr", "note", "nevent":
	default:
		return Subject{Identifier: name}, nostr.CheckIdentifier(name)
	}
	kind, value, err := nip19.Decode(encoded)
	switch v := value.(type) {
	case string:
		if s.PubKey = v; kind == "note" {
			s = Subject{Event: v}
		}
	case gonostr.ProfilePointer:
		s.PubKey = v.PublicKey
	case gonostr.EventPointer:
		s.Event = v.ID
	case gonostr.EntityPointer:
		if v.Kind == nostr.KindAnnouncement {
			s = Subject{PubKey: v.PublicKey, Identifier: v.Identifier}
		}
	}
	if err == nil && (slash && (s.PubKey == "" || s.Identifier != "") || s == (Subject{})) {
		err = errors.New("it names no author, repository or event")
	}
	if slash && err == nil {
		s.Identifier, err = identifier, nostr.CheckIdentifier(identifier)
	}
	if err != nil {
		return Subject{}, fmt.Errorf("%.200q cannot be banned: %w; want npub1…, npub1…/identifier, an identifier or an event id", name, err)
	}
	return s, nil
}

// String is the subject as people write it.
func (s Subject) String() string {
	npub, _ := nip19.EncodePublicKey(s.PubKey) // of a key that is none it is empty
	switch {
	case s.PubKey == "":
		return cmp.Or(s.Event, s.Identifier)
	case s.Identifier == "":
		return npub
	}
	return npub + "/" + s.Identifier
}

// Kind says in a word what the subject is.
func (s Subject) Kind() string {
	switch {
	case s.Event != "":
		return "event"
	case s.Repositories:
		return "owner"
	case s.PubKey == "":
		return "identifier"
	case s.Identifier == "":
		return "author"
	}
	return "repository"
}

// Name is that of its ban among others: its key, if it has one.
func (s Subject) Name() string {
	key, _ := s.Key() // all but what is too long to be announced has one
	return key
}

// filter finds the events that are banned with the subject.
func (s Subject) filter() (f nostr.Filter) {
	if s.Event != "" {
		return nostr.Filter{IDs: []string{s.Event}}
	}
	if s.PubKey != "" {
		f.Authors = []string{s.PubKey}
	}
	if s.Identifier != "" || s.Repositories {
		f.Kinds = []int{nostr.KindAnnouncement, nostr.KindState}
	}
	if s.Identifier != "" {
		f.Tags = nostr.TagMap{"d": {s.Identifier}}
	}
	return f
}

// Key is the key of the subject in the bucket. The stranger's part of it is encoded.
func (s Subject) Key() (string, error) {
	name := cmp.Or(s.Event, s.PubKey)
	if s.Identifier != "" {
		token, err := proto.EncodeIdentifier(s.Identifier)
		if err != nil {
			return "", fmt.Errorf("the key of a ban: %w", err)
		}
		name = strings.TrimPrefix(s.PubKey+"/"+token, "/")
	}
	return s.Kind() + "." + name, nil
}

// parseKey is the inverse of Key. It refuses what Key would not have written.
func parseKey(key string) (s Subject, err error) {
	kind, name, _ := strings.Cut(key, ".")
	owner, token, slash := strings.Cut(name, "/")
	switch {
	case kind == "event":
		s.Event = name
	case kind == "identifier":
		token = name
	case kind == "repository" && slash, kind == "author", kind == "owner":
		s.PubKey, s.Repositories = owner, kind == "owner"
	}
	if token != "" {
		s.Identifier, err = proto.DecodeIdentifier(token)
	}
	again, failed := s.Key()
	if err = errors.Join(err, failed); err == nil && (again != key || s.Event+s.PubKey != "" && !nostr.IsHex64(s.Event+s.PubKey)) {
		err = fmt.Errorf("%.200q is no key of a ban", key)
	}
	return s, err
}
