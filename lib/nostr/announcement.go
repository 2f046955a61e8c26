package nostr

import (
	"errors"
	"fmt"
)

// Announcement is a repository announcement (NIP-34, kind 30617).
type Announcement struct {
	Event *Event
	Ref   RepoRef

	Name, Description string

	// Web, Clone and Relays are URLs as they were given, not checked: an announcement with one odd
	// URL among good ones is still an announcement. Use RelayURLs and NormalizeCloneURL before any
	// of them is connected to.
	Web, Clone, Relays []string

	Roles
}

// ParseAnnouncement reads an announcement. It needs a legal identifier; the tags relays, clone, web
// and maintainers may hold several values and may stand several times, up to MaxURLs and MaxListed.
// Role records count like maintainers.
func ParseAnnouncement(ev *Event) (*Announcement, error) {
	if ev.Kind != KindAnnouncement {
		return nil, fmt.Errorf("kind %d is not a repository announcement", ev.Kind)
	}
	if !IsHex64(ev.PubKey) {
		return nil, errors.New("the author is not a public key of 64 lower-case hex digits")
	}
	a := &Announcement{
		Event: ev, Ref: RepoRef{PubKey: ev.PubKey, Identifier: ev.Tags.GetD()},
		Name: tagValue(ev.Tags, "name"), Description: tagValue(ev.Tags, "description"),
	}
	if err := CheckIdentifier(a.Ref.Identifier); err != nil {
		return nil, err
	}
	var err error
	if a.Web, err = tagValues(ev.Tags, "web", MaxURLs); err != nil {
		return nil, err
	}
	var maintainers []string
	room := MaxListed
	for _, tag := range ev.Tags {
		if isRoleTag(tag) {
			room--
		}
	}
	for name, values := range map[string]*[]string{"clone": &a.Clone, "relays": &a.Relays, "maintainers": &maintainers} {
		if room >= 0 {
			*values, err = tagValues(ev.Tags, name, room)
		}
		if room < 0 || err != nil {
			return nil, fmt.Errorf("the announcement names more than %d maintainers, relays and clone URLs", MaxListed)
		}
		room -= len(*values)
	}
	a.Roles = rolesOf(ev.PubKey, ev.Tags, maintainers)
	return a, nil
}

// RelayURLs are the relays of the announcement, normalised. Invalid ones are left out; ws and wss
// to the same host and port are one relay, named as wss.
func (a *Announcement) RelayURLs() []RelayURL {
	urls := make([]RelayURL, 0, len(a.Relays))
	at := make(map[string]int, len(a.Relays))
	for _, given := range a.Relays {
		u, err := NormalizeRelayURL(given)
		if err != nil {
			continue
		}
		key := u.Key()
		i, have := at[key]
		switch {
		case !have:
			at[key] = len(urls)
			urls = append(urls, u)
		case u.Secure():
			urls[i] = u
		}
	}
	return urls
}

// CloneURLs are the http and https clone URLs of the announcement, normalised, each once. Others
// (ssh, git, paths, URLs with credentials) are left out: no one fetches from them.
func (a *Announcement) CloneURLs() []string { return normalizeCloneURLs(a.Clone) }
