package config_test

import (
	"iter"
	"strconv"
	"strings"
	"testing"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

// announced is an announcement of x by its owner at GRASP services.
func announced(t *testing.T, owner *fixture.Person, services ...string) *nostr.Announcement {
	t.Helper()
	clone, relays := nostr.Tag{"clone", "https://plain.example/x.git"}, nostr.Tag{"relays"}
	for _, s := range services {
		clone, relays = append(clone, "https://"+s+"/"+owner.Npub+"/x.git"), append(relays, "wss://"+s)
	}
	a, err := nostr.ParseAnnouncement(owner.Sign(nostr.KindAnnouncement, "", nostr.Tag{"d", "x"}, clone, relays))
	must(t, err)
	return a
}

// TestWhatIsKept: what is done with an announcement, by what NGIT_ARCHIVE_… are, and by the
// services that it lists.
func TestWhatIsKept(t *testing.T) {
	t.Parallel()
	owner := fixture.Unsigned(strings.Repeat("1", 64))
	names := strings.NewReplacer("OWNER", owner.Npub, "OTHER", fixture.Unsigned(strings.Repeat("2", 64)).Npub, "US", "git.example.com")
	for _, c := range fixture.Rows(names.Replace(`
		listed read-only   |                                                 | US
		read-only          |                                                 | a.example
		archived read-only | ALL=true                                        |
		listed read-only   | ALL=true                                        | US
		archived           | ALL=true READ_ONLY=false                        |
		archived read-only | WHITELIST=OWNER                                 |
		archived read-only | WHITELIST=x                                     |
		archived read-only | WHITELIST=OWNER/x                               |
		read-only          | WHITELIST=OWNER/y                               |
		read-only          | WHITELIST=OTHER/x                               |
		archived read-only | GRASP_SERVICES=b.example,A.example:443          | a.example
		read-only          | GRASP_SERVICES=a.example:8080                   | a.example
		listed read-only   | GRASP_SERVICES=a.example                        | a.example US
		archived read-only | GRASP_SERVICES=plain.example                    |`)) {
		environ := []string{"NGIT_DOMAIN=git.example.com"}
		for setting := range strings.FieldsSeq(c[1]) {
			environ = append(environ, "NGIT_ARCHIVE_"+setting)
		}
		s, err := (&config.Source{Environ: environ, Dir: t.TempDir()}).Parse(nil)
		must(t, err)
		r, err := s.Hosting()
		must(t, err)
		a, got := announced(t, owner, strings.Fields(c[2])...), []string{}
		for what, is := range map[string]bool{"listed": r.Lists(a), "archived": r.Archives(a)} {
			if is {
				got = append(got, what)
			}
		}
		if r.Keeps(a, nil) != (len(got) == 1) || new(config.Rules).Keeps(a, nil) {
			t.Errorf("%q: kept %v", c, r.Keeps(a, nil))
		}
		if r.ReadOnly() {
			got = append(got, "read-only")
		}
		if strings.Join(got, " ") != c[0] {
			t.Errorf("%q: %q", c, got)
		}
	}
}

// announcements finds them by author.
type announcements map[string]*nostr.Announcement

func (all announcements) By(author string) *nostr.Announcement { return all[author] }

func (all announcements) LedBy(string) iter.Seq[*nostr.Announcement] {
	return func(func(*nostr.Announcement) bool) {}
}

// TestWhitelist: what lists us is hosted if the whitelist has it, or if its owner is a confirmed
// maintainer of one that is hosted, on any path.
func TestWhitelist(t *testing.T) {
	t.Parallel()
	people, all := map[string]*fixture.Person{}, announcements{}
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		people[name] = fixture.Unsigned(strings.Repeat(strconv.Itoa(i+1), 64))
	}
	for _, c := range fixture.Rows(`
		a | US    | b   | on the list
		b | US    | a c | a maintainer of a
		c | US    | b   | a maintainer of b, and of a by b
		d | US    | a   | who is not listed
		e | other | a   | does not list us`) {
		service := strings.NewReplacer("US", "git.example.com", "other", "other.example").Replace(c[1])
		a := announced(t, people[c[0]], service)
		for name := range strings.FieldsSeq(c[2]) {
			a.Listed = append(a.Listed, people[name].PubKey)
		}
		all[a.Ref.PubKey] = a
	}
	for list, want := range map[string]string{"": "a b c d", people["a"].Npub: "a b c", "y": "", people["a"].Npub + "/y": "", "x": "a b c d"} {
		s, err := (&config.Source{Environ: []string{"NGIT_DOMAIN=git.example.com", "NGIT_REPOSITORY_WHITELIST=" + list}, Dir: t.TempDir()}).Parse(nil)
		must(t, err)
		r, err := s.Hosting()
		must(t, err)
		var kept []string
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			if r.Keeps(all[people[name].PubKey], all) {
				kept = append(kept, name)
			}
		}
		if strings.Join(kept, " ") != want {
			t.Errorf("with %q are kept %v, want %s", list, kept, want)
		}
	}
}
