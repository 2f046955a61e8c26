// Package outside is what a Tendril meets: people with keys who work on repositories, relays and
// git servers that no one here wrote, and a user's client. Nothing in it knows of tests: test/world
// makes it fit for them, and test/k8s/world puts it into pods.
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
func NewPerson() (*Person, error) { return PersonOf(gonostr.GeneratePrivateKey()) }

// PersonOf makes the person who has a secret key, of 64 hex digits.
func PersonOf(secret string) (*Person, error) {
	p := &Person{secret: secret}
	var err error
	if p.PubKey, err = gonostr.GetPublicKey(p.secret); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if p.Npub, err = nip19.EncodePublicKey(p.PubKey); err != nil {
		return nil, fmt.Errorf("encode a public key: %w", err)
	}
	return p, nil
}

// Sign makes an event of some time.
func (p *Person) Sign(at nostr.Timestamp, kind int, content string, tags ...nostr.Tag) (*nostr.Event, error) {
	ev := &nostr.Event{Kind: kind, CreatedAt: at, Content: content, Tags: tags}
	if err := ev.Sign(p.secret); err != nil {
		return nil, fmt.Errorf("sign an event of kind %d: %w", kind, err)
	}
	return ev, nil
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
