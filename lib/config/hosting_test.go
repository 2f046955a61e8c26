package config_test

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

// announced is an announcement of x by owner at GRASP services.
func announced(t *testing.T, owner, npub string, services ...string) *nostr.Announcement {
	t.Helper()
	clone, relays := nostr.Tag{"clone", "https://plain.example/x.git"}, nostr.Tag{"relays"}
	for _, s := range services {
		clone, relays = append(clone, "https://"+s+"/"+npub+"/x.git"), append(relays, "wss://"+s)
	}
	a, err := nostr.ParseAnnouncement(&nostr.Event{Kind: nostr.KindAnnouncement, PubKey: owner, Tags: nostr.Tags{{"d", "x"}, clone, relays}})
	must(t, err)
	return a
}

func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	owner := strings.Repeat("1", 64)
	npub, err := nip19.EncodePublicKey(owner)
	must(t, err)
	other, err := nip19.EncodePublicKey(strings.Repeat("2", 64))
	must(t, err)
	names := strings.NewReplacer("OWNER", npub, "OTHER", other, "US", "git.example.com")
	for row, want := range map[string]string{ // what NGIT_ARCHIVE_… are, and the services that are listed
		"|US": "listed read-only", "|a.example": "read-only", "ALL=true|": "archived read-only", "ALL=true|US": "listed read-only", "ALL=true READ_ONLY=false|": "archived",
		"WHITELIST=OWNER|": "archived read-only", "WHITELIST=x|": "archived read-only", "WHITELIST=OWNER/x|": "archived read-only",
		"WHITELIST=OWNER/y|": "read-only", "WHITELIST=OTHER/x|": "read-only",
		"GRASP_SERVICES=b.example,A.example:443|a.example": "archived read-only", "GRASP_SERVICES=a.example:8080|a.example": "read-only",
		"GRASP_SERVICES=a.example|a.example US": "listed read-only", "GRASP_SERVICES=plain.example|": "archived read-only",
	} {
		settings, services, _ := strings.Cut(names.Replace(row), "|")
		environ := []string{"NGIT_DOMAIN=git.example.com"}
		for setting := range strings.FieldsSeq(settings) {
			environ = append(environ, "NGIT_ARCHIVE_"+setting)
		}
		s, err := (&config.Source{Environ: environ, Dir: t.TempDir()}).Parse(nil)
		must(t, err)
		r, err := s.Hosting()
		must(t, err)
		a, got := announced(t, owner, npub, strings.Fields(services)...), []string{}
		for what, is := range map[string]bool{"listed": r.Lists(a), "archived": r.Archives(a)} {
			if is {
				got = append(got, what)
			}
		}
		if r.Keeps(a) != (len(got) == 1) || new(config.Rules).Keeps(a) {
			t.Errorf("%s: kept %v", row, r.Keeps(a))
		}
		if r.ReadOnly() {
			got = append(got, "read-only")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", row, got, want)
		}
	}
}

// must ends the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
