package bans

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// keyMember begins the keys by which an operator adds members to a private service, and removes
// them. infoPrivate is what of Info says that the log is of a private service.
const (
	keyMember   = "member."
	infoPrivate = "private"
)

// readMember takes in that a member was added or removed, under the key of the bucket without its
// prefix.
func (s *Set) readMember(key string, data []byte, forgotten bool) {
	var m proto.Member
	if err := json.Unmarshal(data, &m); err != nil && !forgotten || !nostr.IsHex64(key) {
		s.log.Error("a member cannot be read, and is none", "key", key, "error", err)
		m.Removed = true
	}
	s.mu.Lock()
	if delete(s.members, key); !forgotten {
		s.members[key] = m
	}
	changed := s.changed
	s.mu.Unlock()
	for _, tell := range changed {
		tell(Subject{PubKey: key})
	}
}

// PutMember makes a key a member of a private service, or takes that away, at once and in every
// process. by is who does so, for `tendril member list`.
func PutMember(ctx context.Context, js jetstream.JetStream, key string, removed bool, by string) error {
	return write(ctx, js, keyMember+key, proto.Member{Npub: nostr.Npub(key), By: by, At: time.Now().UTC(),
		Removed: removed}, nil)
}

// MarkPrivate notes that the log is of a private service, or that an operator lets everyone read it.
func MarkPrivate(ctx context.Context, js jetstream.JetStream, private bool, by string) error {
	return PutInfo(ctx, js, infoPrivate, fmt.Sprint(private), by)
}

// WasPrivate reports whether the log is of a private service: no setting makes it public.
func (s *Set) WasPrivate() bool { return s.private() == "true" }

// MadePublic reports whether an operator lets everyone read what was private.
func (s *Set) MadePublic() bool { return s.private() == "false" }

func (s *Set) private() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.info[infoPrivate]
}

// Circle is who may read a service: everyone, or the members of a private one (GRASP-08). Members
// are those of the settings, and those that the operator has added, without those that the operator
// has removed or banned.
type Circle struct {
	set     *Set
	mode    bool
	settled map[string]bool // by the settings
}

// Circle is that of a service with these settings.
func (s *Set) Circle(p config.Private) Circle { return Circle{s, p.PrivateMode, p.Members()} }

// IsPrivate reports whether members alone may read. It is also true where the settings say otherwise,
// but the log is of a private service.
func (c Circle) IsPrivate() bool { return c.mode || c.set.WasPrivate() }

// Has reports whether a key is a member's at this moment.
func (c Circle) Has(key string) bool {
	c.set.mu.RLock()
	defer c.set.mu.RUnlock()
	m, changed := c.set.members[key]
	return (c.settled[key] && !changed || changed && !m.Removed) && c.set.find(Subject{PubKey: key}) == nil
}

// OnChange has fn called when there may be other members than before. fn must be quick.
func (c Circle) OnChange(fn func()) { c.set.OnChange(func(Subject) { fn() }) }

// Changes are the members that the operator has added and removed, in order of their npubs.
func (s *Set) Changes() (list []proto.Member) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, m := range s.members {
		m.Npub = nostr.Npub(key)
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b proto.Member) int { return strings.Compare(a.Npub, b.Npub) })
	return list
}
