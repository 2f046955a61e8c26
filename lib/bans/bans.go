// Package bans knows what an operator has banned: authors, repositories, identifiers, events and
// kinds of events, and the relays, git hosts and client addresses that are left alone.
// The bans of the bucket grasp-bans are followed while a process runs, and those of the blacklist
// settings stand as long as it runs. Every process asks it the same questions, about an event,
// a repository, and who is outside.
package bans

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

var _ eventdb.Bans = (*Set)(nil)

// Ban is one ban.
type Ban struct {
	Subject
	proto.Ban
	Fixed bool // by the settings: it stands as long as the process runs
}

// Message is what clients are told.
func (b *Ban) Message() string {
	reason := b.Reason
	switch {
	case reason != "":
	case b.Kind() == "author":
		reason = "this author is not welcome here"
	case b.Kind() == "event":
		reason = "this event is not welcome here"
	case b.Outside.EventKind != "":
		reason = "this kind of event is not welcome here"
	case b.Outside != Outside{}:
		reason = "not welcome here"
	default:
		reason = "this repository is not welcome here"
	}
	return "blocked: " + reason
}

// Over reports whether what is stored of the subject must be removed now.
func (b *Ban) Over(grace time.Duration, now time.Time) bool {
	return b.Purge && !now.Before(b.At.Add(grace))
}

// order sorts bans: those first that remove what they hide, and of these the oldest.
func order(a, b *Ban) int {
	switch {
	case a.Purge == b.Purge:
		return a.At.Compare(b.At)
	case a.Purge:
		return -1
	}
	return 1
}

// Info is what an operator's client can change of the relay information document.
type Info struct{ Name, Description, Icon string }

// keyInfo begins the keys of Info, keyUsed those of authorisations that were used once, and
// keyAllowed those of what an operator has said is welcome.
const (
	keyInfo    = "info."
	keyUsed    = "used."
	keyAllowed = "allowed."
)

// maxReason bounds the reason of a ban, in bytes.
const maxReason = 200

// Set is all bans as of a sequence of the bucket's stream, which it follows while
// [bus.Follower.Run] runs. It is safe for concurrent use.
type Set struct {
	*bus.Follower
	log   *slog.Logger
	fixed map[Subject]*Ban // by the settings

	mu      sync.RWMutex
	bans    map[Subject]*Ban // by the bucket
	kinds   int              // of these, those of a kind of events
	allowed map[Subject]*Ban
	info    map[string]string
	names   map[string]Name
	named   []func(name string, by proto.Ban, ended bool)
	next    chan struct{}           // is closed when a ban changes
	members map[string]proto.Member // that the operator has added and removed, by key
	changed []func(Subject)
	audited []func(Subject, proto.Ban, bool)
}

// New makes a set that has the bans of the settings alone.
func New(p config.Policy, log *slog.Logger) (*Set, error) {
	s := &Set{log: log, fixed: map[Subject]*Ban{}, bans: map[Subject]*Ban{}, allowed: map[Subject]*Ban{},
		info: map[string]string{}, names: map[string]Name{}, members: map[string]proto.Member{}, next: make(chan struct{})}
	for i, list := range [][]string{p.EventBlacklist, p.RepositoryBlacklist} {
		for _, entry := range list {
			subject := Subject{Identifier: entry}
			var err error
			if npub, identifier, _ := strings.Cut(entry, "/"); strings.HasPrefix(npub, "npub1") {
				subject = Subject{Identifier: identifier, Repositories: i == 1 && identifier == ""}
				subject.PubKey, err = config.ParseNpub(npub)
			}
			if err != nil {
				return nil, fmt.Errorf("a blacklist names %q: %w", entry, err)
			}
			s.fixed[subject] = &Ban{Subject: subject, Fixed: true}
		}
	}
	return s, nil
}

// Open makes a set that has all bans of this moment. Run must run for later ones.
func Open(ctx context.Context, js jetstream.JetStream, p config.Policy, log *slog.Logger) (*Set, error) {
	s, err := New(p, log)
	if err != nil {
		return nil, err
	}
	s.Follower = bus.NewFollower(js, bus.Reading{Stream: proto.KVStream(proto.BucketBans)}, log, bus.Each(s.read))
	if err := s.Follower.ReadAll(ctx); err != nil {
		return nil, fmt.Errorf("read what is banned: %w", err)
	}
	return s, nil
}

// read takes a message of the bucket's stream in. What its value does not say is banned all the
// same.
func (s *Set) read(m bus.Message) {
	key := strings.TrimPrefix(m.Subject, proto.KVSubject(proto.BucketBans, ""))
	if strings.HasPrefix(key, keyUsed) {
		return
	}
	if member, is := strings.CutPrefix(key, keyMember); is {
		s.readMember(member, m.Data, m.Deletes())
		return
	}
	var b proto.Ban
	err := json.Unmarshal(m.Data, &b)
	by := b // of an end, who has lifted the ban
	if m.Deletes() {
		b, err = proto.Ban{}, nil
	}
	if name, is := strings.CutPrefix(key, keyInfo); is && err == nil {
		s.mu.Lock()
		s.info[name] = b.What
		s.mu.Unlock()
		return
	}
	if token, is := strings.CutPrefix(key, keyName); is && err == nil {
		s.readName(token, by, m.Deletes())
		return
	}
	key, allows := strings.CutPrefix(key, keyAllowed)
	subject, wrong := parseKey(key)
	if err = cmp.Or(wrong, err); err != nil {
		s.log.Error("a ban cannot be read", "key", key, "error", err)
	}
	if wrong != nil {
		return
	}
	s.mu.Lock()
	if allows {
		if delete(s.allowed, subject); !m.Deletes() {
			s.allowed[subject] = &Ban{Subject: subject, Ban: b}
		}
		s.mu.Unlock()
		return
	}
	if s.bans[subject] != nil && subject.Outside.EventKind != "" {
		s.kinds--
	}
	if delete(s.bans, subject); !m.Deletes() {
		s.bans[subject] = &Ban{Subject: subject, Ban: b}
		if subject.Outside.EventKind != "" {
			s.kinds++
		}
	}
	close(s.next)
	s.next = make(chan struct{})
	changed, audited := s.changed, s.audited
	s.mu.Unlock()
	for _, tell := range audited {
		tell(subject, by, m.Deletes())
	}
	for _, tell := range changed {
		tell(subject)
	}
}

// OnChange has fn called with what is banned or not any more, after the set has that. fn must be
// quick.
func (s *Set) OnChange(fn func(Subject)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(slices.Clip(s.changed), fn)
}

// OnAudit has fn called with each ban that is set or lifted while the set follows the bucket, and
// with who did that. fn must be quick.
func (s *Set) OnAudit(fn func(subject Subject, by proto.Ban, lifted bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.audited = append(slices.Clip(s.audited), fn)
}

// find returns the ban of a subject; nil: there is none. s.mu is held.
func (s *Set) find(subject Subject) *Ban { return cmp.Or(s.bans[subject], s.fixed[subject]) }

// Find returns the ban of a subject itself; nil: there is none.
func (s *Set) Find(subject Subject) *Ban {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.find(subject)
}

// Named returns the ban of that name; nil: there is none.
func (s *Set) Named(name string) *Ban {
	subject, err := parseKey(name)
	if err != nil {
		return nil
	}
	return s.Find(subject)
}

// Repository returns the ban by which a repository is banned; nil: it is not. Of several that is
// the one by which it is removed first.
func (s *Set) Repository(ref nostr.RepoRef) *Ban {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.repository(ref)
}

func (s *Set) repository(ref nostr.RepoRef) *Ban {
	return first(s.find(Subject{PubKey: ref.PubKey}), s.find(Subject{PubKey: ref.PubKey, Identifier: ref.Identifier}),
		s.find(Subject{Identifier: ref.Identifier}), s.find(Subject{PubKey: ref.PubKey, Repositories: true}))
}

// first is the ban that removes first; nil: there is none.
func first(bans ...*Ban) *Ban {
	bans = slices.DeleteFunc(bans, func(b *Ban) bool { return b == nil })
	if len(bans) == 0 {
		return nil
	}
	return slices.MinFunc(bans, order)
}

// Event returns the ban by which an event is banned; nil: it is not. Its id or its author is
// banned, or it is the announcement or a state of a banned repository. What only names something
// banned is for the index to find.
func (s *Set) Event(ev *nostr.Event) *Ban {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.bans)+len(s.fixed) == 0 {
		return nil
	}
	own := first(s.find(Subject{Event: ev.ID}), s.find(Subject{PubKey: ev.PubKey}))
	if s.kinds > 0 {
		own = first(own, s.find(Subject{Outside: Outside{EventKind: strconv.Itoa(ev.Kind)}}))
	}
	if ev.Kind == nostr.KindAnnouncement || ev.Kind == nostr.KindState {
		return first(own, s.repository(nostr.RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}))
	}
	return own
}

// Banned implements [eventdb.Bans].
func (s *Set) Banned(ev *nostr.Event) (name string, banned bool) {
	b := s.Event(ev)
	if b == nil {
		return "", false
	}
	return b.Name(), true
}

// Reach implements [eventdb.Bans]. Those that remove what they hide come first.
func (s *Set) Reach() iter.Seq2[string, nostr.Filter] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := slices.AppendSeq(slices.Collect(maps.Values(s.bans)), maps.Values(s.fixed))
	slices.SortFunc(all, order)
	return func(yield func(string, nostr.Filter) bool) {
		for _, b := range all {
			if b.Hides() && !yield(b.Name(), b.filter()) {
				return
			}
		}
	}
}

// All yields the bans of the bucket, in order of their subjects.
func (s *Set) All() iter.Seq[*Ban] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return inOrder(s.bans)
}

func inOrder(bans map[Subject]*Ban) iter.Seq[*Ban] {
	return slices.Values(slices.SortedFunc(maps.Values(bans), func(a, b *Ban) int {
		return cmp.Or(cmp.Compare(a.Kind(), b.Kind()), cmp.Compare(a.String(), b.String()))
	}))
}

// Allowed yields what an operator has said is welcome, in order. It is a note alone: what is not
// banned is allowed.
func (s *Set) Allowed() iter.Seq[*Ban] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return inOrder(s.allowed)
}

// IsAllowed reports whether an operator has said that a subject is welcome.
func (s *Set) IsAllowed(subject Subject) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.allowed[subject] != nil
}

// BannedError is why the context of [Set.Unless] has ended.
type BannedError struct{ Ban *Ban }

func (e *BannedError) Error() string { return e.Ban.String() + " is banned: " + e.Ban.Message() }

// Unless returns a context that ends with a [BannedError] when one of the subjects is banned; it
// has ended if one is.
func (s *Set) Unless(ctx context.Context, subjects ...Subject) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	look := func() (next <-chan struct{}) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		for _, subject := range subjects {
			if b := s.find(subject); b != nil {
				end(&BannedError{b})
			}
		}
		return s.next
	}
	go func(next <-chan struct{}) {
		for ctx.Err() == nil {
			select {
			case <-next:
				next = look()
			case <-ctx.Done():
			}
		}
	}(look())
	return ctx, func() { end(nil) }
}

// Lifted waits until a subject is not banned, or until the context ends.
func (s *Set) Lifted(ctx context.Context, subject Subject) {
	for ctx.Err() == nil {
		s.mu.RLock()
		ban, next := s.find(subject), s.next
		s.mu.RUnlock()
		if ban == nil {
			return
		}
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

// Info is what the relay says of itself by an operator's client; what is empty was not changed.
func (s *Set) Info() Info {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Info{s.info["name"], s.info["description"], s.info["icon"]}
}

// Put bans a subject, or changes its ban.
func Put(ctx context.Context, js jetstream.JetStream, subject Subject, b proto.Ban) error {
	key, err := subject.Key()
	if err != nil {
		return err
	}
	b.What, b.Reason = subject.String(), oneLine(b.Reason)
	return write(ctx, js, key, b, nil)
}

// Allow notes that a subject is welcome, with the reason.
func Allow(ctx context.Context, js jetstream.JetStream, subject Subject, b proto.Ban) error {
	key, err := subject.Key()
	if err != nil {
		return err
	}
	b.What, b.Reason = subject.String(), oneLine(b.Reason)
	return write(ctx, js, keyAllowed+key, b, nil)
}

// Disallow ends what Allow has noted.
func Disallow(ctx context.Context, js jetstream.JetStream, subject Subject, by string) error {
	key, err := subject.Key()
	if err != nil {
		return err
	}
	return write(ctx, js, keyAllowed+key, proto.Ban{What: subject.String(), By: by, At: time.Now().UTC()},
		nats.Header{proto.KVOperation: {proto.KVDelete}})
}

// Lift ends the ban of a subject. by is who does so, for the log.
func Lift(ctx context.Context, js jetstream.JetStream, subject Subject, by string) error {
	key, err := subject.Key()
	if err != nil {
		return err
	}
	lifted := proto.Ban{What: subject.String(), By: by, At: time.Now().UTC()}
	return write(ctx, js, key, lifted, nats.Header{proto.KVOperation: {proto.KVDelete}})
}

// PutInfo changes what the relay says of itself: its name, description or icon.
func PutInfo(ctx context.Context, js jetstream.JetStream, what, value, by string) error {
	return write(ctx, js, keyInfo+what, proto.Ban{What: value, By: by, At: time.Now().UTC()}, nil)
}

// Use notes that an authorisation was used, for as long as it could be. It is an error, by
// [bus.IsConflict], if it was before.
func Use(ctx context.Context, js jetstream.JetStream, id string, lasts time.Duration) error {
	header := nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}, jetstream.MsgTTLHeader: {lasts.String()}}
	return write(ctx, js, keyUsed+id, proto.Ban{What: id, At: time.Now().UTC()}, header)
}

// write writes the value of a key of the bucket.
func write(ctx context.Context, js jetstream.JetStream, key string, value any, header nats.Header) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s of bucket %s: %w", key, proto.BucketBans, err)
	}
	m := &nats.Msg{Subject: proto.KVSubject(proto.BucketBans, key), Header: header, Data: data}
	if _, err := js.PublishMsg(ctx, m); err != nil {
		return fmt.Errorf("write %s of bucket %s: %w", key, proto.BucketBans, err)
	}
	return nil
}

// oneLine makes a reason fit for an answer in any protocol.
func oneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	return strings.ToValidUTF8(s[:min(len(s), maxReason)], "")
}
