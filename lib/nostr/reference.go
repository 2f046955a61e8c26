package nostr

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"
)

// RepoRef names a repository of one owner: the address of its announcement,
// `30617:<pubkey>:<identifier>`.
type RepoRef struct{ PubKey, Identifier string }

// ParseRepoRef reads `30617:<pubkey>:<identifier>`. The identifier may contain colons, so that only
// the first two separate.
func ParseRepoRef(s string) (RepoRef, error) {
	address, err := ParseAddress(s)
	if err != nil {
		return RepoRef{}, err
	}
	ref, is := address.Repo()
	if !is {
		return RepoRef{}, errors.New("a repository reference starts with kind 30617 and a colon")
	}
	if err := CheckIdentifier(ref.Identifier); err != nil {
		return RepoRef{}, fmt.Errorf("repository reference: %w", err)
	}
	return ref, nil
}

// String writes the reference as it stands in `a` tags.
func (r RepoRef) String() string { return "30617:" + r.PubKey + ":" + r.Identifier }

// Name writes the reference as people read it in logs, commands and pages: `npub1…/identifier`. An
// owner that is no public key stands as it is.
func (r RepoRef) Name() string {
	npub, err := nip19.EncodePublicKey(r.PubKey)
	if err != nil {
		npub = r.PubKey
	}
	if strings.HasSuffix(r.Identifier, ".git") { // npub1…/x.git is the address of x
		return npub + "/" + EncodeIdentifier(r.Identifier) + ".git"
	}
	return npub + "/" + r.Identifier
}

// LogValue makes logs of every format name the repository as commands do.
func (r RepoRef) LogValue() slog.Value { return slog.StringValue(r.Name()) }

// Address is the reference as an Address of kind 30617.
func (r RepoRef) Address() Address {
	return Address{Kind: KindAnnouncement, PubKey: r.PubKey, Identifier: r.Identifier}
}

// Address names a replaceable or addressable event: `<kind>:<pubkey>:<d>`, with an empty d for
// replaceable kinds (NIP-01).
type Address struct {
	Kind               int
	PubKey, Identifier string
}

// ParseAddress reads `<kind>:<pubkey>:<d>`. Only the first two colons separate; the kind is a plain
// decimal number, replaceable (then d is empty) or addressable. What it takes is what
// [Address.String] writes and nothing else, so that everybody who reads a tag finds the same event
// in it.
func ParseAddress(s string) (Address, error) {
	digits, rest, _ := strings.Cut(s, ":")
	pubkey, identifier, found := strings.Cut(rest, ":")
	kind, err := strconv.Atoi(digits)
	switch {
	case !found || err != nil || strconv.Itoa(kind) != digits:
		return Address{}, errors.New("an address is <kind>:<public key>:<identifier>")
	case !IsAddressableKind(kind) && !IsReplaceableKind(kind):
		return Address{}, errors.New("the kind of an address is replaceable or addressable")
	case IsReplaceableKind(kind) && identifier != "":
		return Address{}, errors.New("the address of a replaceable kind has no identifier")
	case !IsHex64(pubkey):
		return Address{}, errors.New("the public key of an address is 64 lower-case hex digits")
	}
	return Address{Kind: kind, PubKey: pubkey, Identifier: identifier}, nil
}

// String writes the address as it stands in `a` tags.
func (a Address) String() string { return strconv.Itoa(a.Kind) + ":" + a.PubKey + ":" + a.Identifier }

// Repo is the repository that the address names, and false where it names something other than an
// announcement.
func (a Address) Repo() (RepoRef, bool) {
	return RepoRef{PubKey: a.PubKey, Identifier: a.Identifier}, a.Kind == KindAnnouncement
}

// AddressOf is the address of a replaceable or addressable event; false for every other kind.
func AddressOf(ev *Event) (Address, bool) {
	switch {
	case IsAddressableKind(ev.Kind):
		return Address{Kind: ev.Kind, PubKey: ev.PubKey, Identifier: ev.Tags.GetD()}, true
	case IsReplaceableKind(ev.Kind):
		return Address{Kind: ev.Kind, PubKey: ev.PubKey}, true
	}
	return Address{}, false
}

// RootRefs are the repositories that a root event belongs to: its `a` tags that are repository
// references, each once.
func RootRefs(ev *Event) []RepoRef {
	var refs distinct[RepoRef]
	for _, tag := range ev.Tags {
		if len(tag) < 2 || tag[0] != "a" {
			continue
		}
		if ref, err := ParseRepoRef(tag[1]); err == nil {
			refs.add(ref)
		}
	}
	return refs.items
}

// References is all that an event names: event ids (`e`, `E`, `q`) and addresses (`a`, `A`, `q`),
// each once, in order.
type References struct {
	IDs       []string
	Addresses []Address
}

// ReferencesOf gathers the references of an event. Values that are neither an id nor an address
// name nothing and are left out.
func ReferencesOf(ev *Event) References {
	var ids distinct[string]
	var addresses distinct[Address]
	for _, tag := range ev.Tags {
		if len(tag) < 2 || len(tag[0]) != 1 {
			continue
		}
		if strings.Contains("eEq", tag[0]) && IsHex64(tag[1]) {
			ids.add(tag[1])
		}
		if !strings.Contains("aAq", tag[0]) {
			continue
		}
		if address, err := ParseAddress(tag[1]); err == nil {
			addresses.add(address)
		}
	}
	return References{IDs: ids.items, Addresses: addresses.items}
}

// NamesOf returns what [ReferencesOf] does as it is written in the tags, addresses before ids: an
// address has one spelling.
func NamesOf(ev *Event) (names []string) {
	refs := ReferencesOf(ev)
	for _, address := range refs.Addresses {
		names = append(names, address.String())
	}
	return append(names, refs.IDs...)
}
