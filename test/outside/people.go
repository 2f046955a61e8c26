// Package outside is relays and people that a Tendril meets. Nothing in it knows of tests: programs
// use it too.
package outside

import (
	"fmt"
	"slices"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// Person has a key and signs events.
type Person struct {
	secret string
	PubKey string
	Npub   string
}

// NewPerson makes a person with a key of their own.
func NewPerson() *Person { return PersonOf(gonostr.GeneratePrivateKey()) }

// PersonOf makes the person who has a secret key, of 64 hex digits.
func PersonOf(secret string) *Person {
	pubkey, err := gonostr.GetPublicKey(secret)
	must(err)
	npub, err := nip19.EncodePublicKey(pubkey)
	must(err)
	return &Person{secret, pubkey, npub}
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprint("a key of tests: ", err))
	}
}

// Sign makes an event of now.
func (p *Person) Sign(kind int, content string, tags ...nostr.Tag) *nostr.Event {
	return p.SignAt(nostr.Now(), kind, content, tags...)
}

// SignAt makes an event of another time.
func (p *Person) SignAt(at nostr.Timestamp, kind int, content string, tags ...nostr.Tag) *nostr.Event {
	ev := &nostr.Event{Kind: kind, CreatedAt: at, Content: content, Tags: tags}
	must(ev.Sign(p.secret))
	return ev
}

// Address is the reference of a repository of this person.
func (p *Person) Address(identifier string) string { return "30617:" + p.PubKey + ":" + identifier }

// AnnouncementTags are those of an announcement (30617) that lists the Tendril of a domain, and
// more clone URLs and relays. Escaped is the identifier as it stands in a path.
func (p *Person) AnnouncementTags(domain, identifier, escaped string, clone, relays []string) nostr.Tags {
	return nostr.Tags{
		{"d", identifier}, {"name", identifier},
		append(nostr.Tag{"clone", "http://" + domain + "/" + p.Npub + "/" + escaped + ".git"}, clone...),
		append(nostr.Tag{"relays", "ws://" + domain}, relays...),
	}
}

// StateTags are those of a state event (30618) with these references and HEAD.
func StateTags(identifier string, refs map[string]string, head string) nostr.Tags {
	tags := nostr.Tags{{"d", identifier}}
	for name, id := range refs {
		tags = append(tags, nostr.Tag{name, id})
	}
	slices.SortFunc(tags[1:], func(a, b nostr.Tag) int { return slices.Compare(a, b) })
	return append(tags, nostr.Tag{"HEAD", "ref: " + head})
}

// Domain is what the tests' Tendril calls itself. Nothing resolves it: clients use the address that
// the process prints.
const Domain = "grasp.test"

// Announce signs an announcement that lists the tests' Tendril, and more clone URLs and relays.
func (p *Person) Announce(identifier, escaped string, clone, relays []string, more ...nostr.Tag) *nostr.Event {
	return p.Sign(30617, "", append(p.AnnouncementTags(Domain, identifier, escaped, clone, relays), more...)...)
}

// State signs a state event with the branches and tags of a work tree.
func (p *Person) State(identifier string, refs map[string]string, head string) *nostr.Event {
	return p.Sign(30618, "", StateTags(identifier, refs, head)...)
}
