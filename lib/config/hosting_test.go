package config_test

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

var owner, other = strings.Repeat("1", 64), strings.Repeat("2", 64)

func npub(t *testing.T, pubkey string) string {
	t.Helper()
	s, err := nip19.EncodePublicKey(pubkey)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// announced is an announcement of x by owner at GRASP services.
func announced(t *testing.T, services ...string) *nostr.Announcement {
	t.Helper()
	clone, relays := nostr.Tag{"clone", "https://plain.example/x.git"}, nostr.Tag{"relays"}
	for _, s := range services {
		clone, relays = append(clone, "https://"+s+"/"+npub(t, owner)+"/x.git"), append(relays, "wss://"+s)
	}
	ev := &nostr.Event{Kind: nostr.KindAnnouncement, PubKey: owner, Tags: nostr.Tags{{"d", "x"}, clone, relays}}
	a, err := nostr.ParseAnnouncement(ev)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	no := false
	list := func(entries ...string) config.Policy { return config.Policy{ArchiveWhitelist: entries} }
	for name, tc := range map[string]struct {
		policy           config.Policy
		at               []string
		listed, archived bool
	}{
		"listed":                        {config.Policy{}, []string{"git.example.com"}, true, false},
		"elsewhere":                     {config.Policy{}, []string{"a.example"}, false, false},
		"all":                           {config.Policy{ArchiveAll: true}, nil, false, true},
		"all, and listed":               {config.Policy{ArchiveAll: true}, []string{"git.example.com"}, true, false},
		"its owner":                     {list(npub(t, owner)), nil, false, true},
		"its identifier":                {list("x"), nil, false, true},
		"itself":                        {list(npub(t, owner) + "/x"), nil, false, true},
		"another of its owner":          {list(npub(t, owner) + "/y"), nil, false, false},
		"the same of another":           {list(npub(t, other) + "/x"), nil, false, false},
		"its service":                   {config.Policy{ArchiveServices: []string{"b.example", "A.example:443"}}, []string{"a.example"}, false, true},
		"another port of its service":   {config.Policy{ArchiveServices: []string{"a.example:8080"}}, []string{"a.example"}, false, false},
		"listed, and at such a service": {config.Policy{ArchiveServices: []string{"a.example"}}, []string{"a.example", "git.example.com"}, true, false},
		"a host of a plain git server":  {config.Policy{ArchiveServices: []string{"plain.example"}}, nil, false, true},
		"writable":                      {config.Policy{ArchiveAll: true, ArchiveReadOnly: &no}, nil, false, true},
	} {
		s := config.Settings{Service: config.Service{Domain: "git.example.com"}, Policy: tc.policy}
		r, err := s.Hosting()
		if err != nil {
			t.Fatal(err)
		}
		a := announced(t, tc.at...)
		if r.Lists(a) != tc.listed || r.Archives(a) != tc.archived || r.Keeps(a) != (tc.listed || tc.archived) {
			t.Errorf("%s: listed %v, archived %v, kept %v", name, r.Lists(a), r.Archives(a), r.Keeps(a))
		}
		if r.ReadOnly() != (name != "writable") {
			t.Errorf("%s: read-only %v", name, r.ReadOnly())
		}
	}
	if new(config.Rules).Keeps(announced(t, "git.example.com")) {
		t.Error("no rules keep something")
	}
}
