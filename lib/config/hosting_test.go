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
	must(t, err)
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
	must(t, err)
	return a
}

func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	no := false
	list := func(entries ...string) config.Policy { return config.Policy{ArchiveWhitelist: entries} }
	const ours = "git.example.com"
	for name, tc := range map[string]struct {
		policy           config.Policy
		at               string
		listed, archived bool
	}{
		"listed":                        {config.Policy{}, ours, true, false},
		"elsewhere":                     {config.Policy{}, "a.example", false, false},
		"all":                           {config.Policy{ArchiveAll: true}, "", false, true},
		"all, and listed":               {config.Policy{ArchiveAll: true}, ours, true, false},
		"its owner":                     {list(npub(t, owner)), "", false, true},
		"its identifier":                {list("x"), "", false, true},
		"itself":                        {list(npub(t, owner) + "/x"), "", false, true},
		"another of its owner":          {list(npub(t, owner) + "/y"), "", false, false},
		"the same of another":           {list(npub(t, other) + "/x"), "", false, false},
		"its service":                   {config.Policy{ArchiveServices: []string{"b.example", "A.example:443"}}, "a.example", false, true},
		"another port of its service":   {config.Policy{ArchiveServices: []string{"a.example:8080"}}, "a.example", false, false},
		"listed, and at such a service": {config.Policy{ArchiveServices: []string{"a.example"}}, "a.example " + ours, true, false},
		"a host of a plain git server":  {config.Policy{ArchiveServices: []string{"plain.example"}}, "", false, true},
		"writable":                      {config.Policy{ArchiveAll: true, ArchiveReadOnly: &no}, "", false, true},
	} {
		r, err := config.Settings{Service: config.Service{Domain: ours}, Policy: tc.policy}.Hosting()
		must(t, err)
		a := announced(t, strings.Fields(tc.at)...)
		if r.Lists(a) != tc.listed || r.Archives(a) != tc.archived || r.Keeps(a) != (tc.listed || tc.archived) || r.ReadOnly() != (name != "writable") {
			t.Errorf("%s: listed %v, archived %v, kept %v, read-only %v", name, r.Lists(a), r.Archives(a), r.Keeps(a), r.ReadOnly())
		}
	}
	if new(config.Rules).Keeps(announced(t, "git.example.com")) {
		t.Error("no rules keep something")
	}
}

// must ends the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
