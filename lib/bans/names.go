package bans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// keyName begins the keys of names that the operator gives to repositories.
const keyName = "name."

// Name is a name that the operator gave to a repository.
type Name struct {
	Name string        `json:"name"`
	Repo nostr.RepoRef `json:"-"`
	proto.Ban
}

var (
	nameForm = regexp.MustCompile(`^[a-z0-9_][a-z0-9._-]{0,99}$`)
	// takenNames are first segments of addresses at the front door, and the keys that nostr.json has
	// for other things.
	takenNames = []string{"healthz", "readyz", "metrics", "prs", "robots.txt", "favicon.ico", "icon.png", "feed", "feed.xml",
		"feed.atom", "atom.xml", "names", "relays", "search", "index.html"}
)

// CheckName says why a repository cannot have a name. A name is one segment of an address; git asks
// for it with .git behind it.
func CheckName(name string) error {
	switch {
	case !nameForm.MatchString(name):
		return errors.New("a name has 1 to 100 of a-z, 0-9, dot, underscore and hyphen, and begins with a letter, " +
			"a digit or an underscore")
	case strings.HasSuffix(name, ".git"):
		return errors.New("a name is given without .git: with and without it are both found")
	case strings.HasPrefix(name, "npub1"):
		return errors.New("a name that begins with npub1 would be taken for a key")
	case slices.Contains(takenNames, name):
		return errors.New("this service has an address of that name")
	}
	return nil
}

// Give gives a name to a repository. A name that another repository had is that of this one then.
func Give(ctx context.Context, js jetstream.JetStream, name string, ref nostr.RepoRef, by string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("%.200q: %w", name, err)
	}
	token, err := proto.EncodeIdentifier(name)
	if err != nil {
		return fmt.Errorf("the key of a name: %w", err)
	}
	return write(ctx, js, keyName+token, proto.Ban{What: ref.Name(), By: by, At: time.Now().UTC()}, nil)
}

// TakeBack ends a name.
func TakeBack(ctx context.Context, js jetstream.JetStream, name, by string) error {
	token, err := proto.EncodeIdentifier(name)
	if err != nil {
		return fmt.Errorf("the key of a name: %w", err)
	}
	return write(ctx, js, keyName+token, proto.Ban{What: name, By: by, At: time.Now().UTC()},
		nats.Header{proto.KVOperation: {proto.KVDelete}})
}

// NamedRepository returns the repository that has a name here.
func (s *Set) NamedRepository(name string) (ref nostr.RepoRef, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n, ok := s.names[name]
	return n.Repo, ok
}

// Names are the names of repositories, in order.
func (s *Set) Names() []Name {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Values(s.names), func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
}

// OnName has fn called with each name that is given or taken back while the set follows the bucket.
// fn must be quick.
func (s *Set) OnName(fn func(name string, by proto.Ban, ended bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named = append(slices.Clip(s.named), fn)
}

// readName takes in a name, or its end. What is no name of a repository is none.
func (s *Set) readName(token string, b proto.Ban, ended bool) {
	name, err := proto.DecodeIdentifier(token)
	if err != nil || CheckName(name) != nil {
		s.log.Error("a name of a repository cannot be read", "key", keyName+token)
		return
	}
	named, err := Parse(b.What)
	ref := nostr.RepoRef{PubKey: named.PubKey, Identifier: named.Identifier}
	s.mu.Lock()
	if delete(s.names, name); !ended && err == nil && named.Kind() == "repository" {
		s.names[name] = Name{name, ref, b}
	}
	tell := s.named
	s.mu.Unlock()
	for _, fn := range tell {
		fn(name, b, ended)
	}
}
