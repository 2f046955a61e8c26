package bans

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/subject"
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

// Of is what a ban is on whose subject a person named. A relay has no ban of this kind.
func Of(named subject.Subject) (Subject, error) {
	if named.Kind == subject.Relay {
		return Subject{}, fmt.Errorf("%s is a relay: authors, repositories, identifiers and events can be banned", named)
	}
	return Subject{Event: named.Event, PubKey: named.PubKey, Identifier: named.Identifier}, nil
}

// Parse reads a subject in any form of lib/subject.
func Parse(text string) (Subject, error) {
	named, err := subject.Parse(text)
	if err != nil {
		return Subject{}, err
	}
	return Of(named)
}

// String is the subject as people write it. Parse reads it back.
func (s Subject) String() string {
	named := subject.Subject{Kind: subject.Kind(s.Kind()), Event: s.Event, PubKey: s.PubKey, Identifier: s.Identifier}
	if s.Repositories {
		named.Kind = subject.Author
	}
	return named.String()
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
	if err = errors.Join(err, failed); err == nil && (again != key || s.Event+s.PubKey != "" &&
		!nostr.IsHex64(s.Event+s.PubKey)) {
		err = fmt.Errorf("%.200q is no key of a ban", key)
	}
	return s, err
}
