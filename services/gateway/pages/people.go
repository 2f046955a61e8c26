package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// maxPersonName is the longest name of a person that is shown, in characters.
const maxPersonName = 60

// person is a person as pages name them. The name is what the person writes of themselves, so the
// key is always beside it.
type person struct {
	Name string // "": they have published none
	Npub string
}

// Short is the key as it is shown where there is little room.
func (p person) Short() string { return p.Npub[:min(len(p.Npub), 12)] + "…" }

// people looks up names. Each is read once.
type people struct {
	view   *eventdb.View
	read   map[string]person
	failed error // what could not be read
}

// of is the person with a public key.
func (p *people) of(pubkey string) person {
	if one, read := p.read[pubkey]; read {
		return one
	}
	one := person{Npub: nostr.Npub(pubkey)}
	profile, err := p.view.Replaceable(nostr.KindProfile, pubkey, "")
	if err == nil {
		one.Name = nameIn(profile.Content)
	} else if !errors.Is(err, eventdb.ErrNotFound) {
		p.failed = fmt.Errorf("look up a name: %w", err)
	}
	if p.read == nil {
		p.read = map[string]person{}
	}
	p.read[pubkey] = one
	return one
}

// each is the persons with these keys, but without the owner of a repository, at most maxListed.
func (p *people) each(keys []string, owner string) (list []person) {
	for _, key := range keys {
		if key != owner && len(list) < maxListed {
			list = append(list, p.of(key))
		}
	}
	return list
}

// nameIn is the name in the content of a profile (kind 0), in one line and without characters that
// turn the direction of a text; "" where there is none.
func nameIn(content string) string {
	var profile struct {
		DisplayName string `json:"display_name"`
		Name        string `json:"name"`
	}
	if json.Unmarshal([]byte(content), &profile) != nil {
		return ""
	}
	for _, name := range []string{profile.DisplayName, profile.Name} {
		if name := clip(strings.Join(strings.Fields(printable(name)), " "), maxPersonName); name != "" {
			return name
		}
	}
	return ""
}
