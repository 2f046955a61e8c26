package bans

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/subject"
	"tendril.dev/proto"
)

// Subject is what a ban is on: an event; an author; a repository, which has both a key and an
// identifier; an identifier, of any owner; or something that others reach us by, or we them.
type Subject struct {
	Event              string
	PubKey, Identifier string
	// Repositories: those of PubKey alone are meant, as NGIT_REPOSITORY_BLACKLIST names them.
	Repositories bool
	// Outside is a kind of events, a relay, a git host or the address of a client.
	Outside Outside
}

// Outside is a subject that is no event, author or repository. One of its fields is set.
type Outside struct {
	EventKind string // in decimal: events of this kind
	Relay     string // its identity, as [nostr.RelayURL.Key] gives it: it is not connected to
	GitHost   string // host name or IP address: nothing is fetched from there
	Address   string // of clients, as [limit.Address] writes it: their requests are refused
}

// The forms of subjects that only bans have.
const (
	prefixEventKind = "kind:"
	prefixGitHost   = "host:"
	prefixAddress   = "address:"
)

// Forms lists the forms that only bans have, for help and errors.
const Forms = "kind:NUMBER, host:NAME of a git server, or address:IP of clients"

// neverBanned are kinds without which this service could not be one: announcements, states,
// deletion requests and requests to vanish.
var neverBanned = []int{nostr.KindAnnouncement, nostr.KindState, nostr.KindDeletion, 62}

// OfKind is the subject of the events of a kind.
func OfKind(kind int) (Subject, error) {
	if kind < 0 || kind > 1<<16-1 {
		return Subject{}, fmt.Errorf("%d is no kind of events; want 0 to 65535", kind)
	}
	if slices.Contains(neverBanned, kind) {
		return Subject{}, fmt.Errorf("kind %d cannot be banned: this service needs it", kind)
	}
	return Subject{Outside: Outside{EventKind: strconv.Itoa(kind)}}, nil
}

// OfRelay is the subject of a relay, by its ws or wss URL.
func OfRelay(url string) (Subject, error) {
	relay, err := nostr.NormalizeRelayURL(url)
	if err != nil {
		return Subject{}, fmt.Errorf("%.200q is no URL of a relay: %w", url, err)
	}
	return Subject{Outside: Outside{Relay: relay.Key()}}, nil
}

// OfGitHost is the subject of a git server, by its host name, its IP address or a URL there.
func OfGitHost(name string) (Subject, error) {
	if !strings.Contains(name, "://") {
		name = "https://" + name
	}
	u, err := url.Parse(name)
	if err != nil || u.Hostname() == "" || len(u.Hostname()) > 253 {
		return Subject{}, fmt.Errorf("%.200q names no host", name)
	}
	return Subject{Outside: Outside{GitHost: strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")}}, nil
}

// OfAddress is the subject of clients: an IPv4 address, or the /64 of an IPv6 address.
func OfAddress(text string) (Subject, error) {
	addr, err := netip.ParseAddr(text)
	if prefix, wrong := netip.ParsePrefix(text); err != nil && wrong == nil && prefix.Bits() == 64 && prefix.Addr().Is6() {
		addr, err = prefix.Addr(), nil
	}
	if err != nil {
		return Subject{}, fmt.Errorf("%.200q is no IP address", text)
	}
	return Subject{Outside: Outside{Address: limit.Address(addr)}}, nil
}

// Of is what a ban is on whose subject a person named.
func Of(named subject.Subject) (Subject, error) {
	if named.Kind == subject.Relay {
		return OfRelay(string(named.Relay))
	}
	return Subject{Event: named.Event, PubKey: named.PubKey, Identifier: named.Identifier}, nil
}

// Parse reads a subject in any form of lib/subject, or in one that only bans have.
func Parse(text string) (Subject, error) {
	text = strings.TrimSpace(text)
	if number, is := strings.CutPrefix(text, prefixEventKind); is {
		kind, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return Subject{}, fmt.Errorf("%.200q is no kind of events; want 0 to 65535", number)
		}
		return OfKind(int(kind))
	}
	if name, is := strings.CutPrefix(text, prefixGitHost); is {
		return OfGitHost(name)
	}
	if addr, is := strings.CutPrefix(text, prefixAddress); is {
		return OfAddress(addr)
	}
	named, err := subject.Parse(text)
	if err != nil {
		return Subject{}, fmt.Errorf("%w, %s", err, Forms)
	}
	return Of(named)
}

// String is the subject as people write it. Parse reads it back.
func (s Subject) String() string {
	switch o := s.Outside; {
	case o.EventKind != "":
		return prefixEventKind + o.EventKind
	case o.Relay != "":
		return "wss://" + o.Relay
	case o.GitHost != "":
		return prefixGitHost + o.GitHost
	case o.Address != "":
		return prefixAddress + o.Address
	}
	named := subject.Subject{Kind: subject.Kind(s.Kind()), Event: s.Event, PubKey: s.PubKey, Identifier: s.Identifier}
	if s.Repositories {
		named.Kind = subject.Author
	}
	return named.String()
}

// Kind says in a word what the subject is.
func (s Subject) Kind() string {
	switch o := s.Outside; {
	case o.EventKind != "":
		return "kind"
	case o.Relay != "":
		return "relay"
	case o.GitHost != "":
		return "host"
	case o.Address != "":
		return "address"
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

// name is what an outside subject is called.
func (o Outside) name() string { return cmp.Or(o.EventKind, o.Relay, o.GitHost, o.Address) }

// Hides reports whether events are banned with the subject. What is only asked elsewhere, or asks
// us, has none.
func (s Subject) Hides() bool { return s.Outside == Outside{} || s.Outside.EventKind != "" }

// filter finds the events that are banned with the subject.
func (s Subject) filter() (f nostr.Filter) {
	if kind, err := strconv.Atoi(s.Outside.EventKind); err == nil {
		return nostr.Filter{Kinds: []int{kind}}
	}
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
	if outside := s.Outside.name(); outside != "" {
		token, err := proto.EncodeIdentifier(outside)
		if err != nil {
			return "", fmt.Errorf("the key of a ban: %w", err)
		}
		return s.Kind() + "." + token, nil
	}
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
	outside := map[string]*string{
		"kind": &s.Outside.EventKind, "relay": &s.Outside.Relay, "host": &s.Outside.GitHost, "address": &s.Outside.Address,
	}[kind]
	switch {
	case outside != nil:
		*outside, err = proto.DecodeIdentifier(name)
		token = ""
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
	if outside != nil && err == nil { // no other name of the same
		var same Subject
		if same, err = Parse(s.String()); err == nil && same != s {
			err = fmt.Errorf("%.200q is no key of a ban", key)
		}
	}
	if err = errors.Join(err, failed); err == nil && (again != key || s.Event+s.PubKey != "" &&
		!nostr.IsHex64(s.Event+s.PubKey)) {
		err = fmt.Errorf("%.200q is no key of a ban", key)
	}
	return s, err
}
