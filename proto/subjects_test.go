package proto

import (
	"strconv"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

var (
	author = strings.Repeat("ab", 32)
	someID = strings.Repeat("0123456789abcdef", 4)
)

func TestEventSubjectIsIdentity(t *testing.T) {
	t.Parallel()
	other := strings.Repeat("f", 64)
	names := strings.NewReplacer("author", author, "other", other)
	of := func(id string, fields []string) EventSubject {
		kind, _ := strconv.Atoi(fields[0])
		return EventSubjectOf(&nostr.Event{ID: id, Kind: kind, PubKey: fields[1], Tags: nostr.Tags{{"d", fields[2]}}})
	}
	for name, row := range map[string]string{ // kind, author and d of both, and whether they have one subject
		"regular events by id":              "1621 author - 1621 author - false",
		"replaceable events of one author":  "10317 author - 10317 author - true",
		"metadata is replaceable":           "0 author - 0 author - true",
		"replaceable events of two authors": "10317 author - 10317 other - false",
		"addressable events of one d":       "30617 author x 30617 author x true",
		"addressable events of two d":       "30617 author x 30617 author y false",
		"addressable events of two kinds":   "30617 author x 30618 author x false",
	} {
		c := strings.Fields(names.Replace(row))
		a, b := of(someID, c), of(other, c[3:])
		if got := a == b; got != (c[6] == "true") {
			t.Errorf("%s: same subject %v, want %s", name, got, c[6])
		}
		if back, err := ParseEventSubject(a.String()); err != nil || back != a || !validKey(a.String()) {
			t.Errorf("%s: %q parses to %v, %v", name, a, back, err)
		}
	}
}

// refuses reports whether a parser takes none of the subjects.
func refuses[T any](parse func(string) (T, error)) func(string) bool {
	return func(subject string) bool { _, err := parse(subject); return err != nil }
}

func refuses2(parse func(string) (string, string, error)) func(string) bool {
	return func(subject string) bool { _, _, err := parse(subject); return err != nil }
}

func TestParsersRefuse(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("SHORT", someID[:ShortIDLength], "AUTHOR", author, "LARGE", strings.ToUpper(author), "LONG", strings.Repeat("a", 65))
	for bad, refused := range map[string]func(string) bool{
		"|grasp.mark.events|grasp.event.1.AUTHOR|grasp.event.01.AUTHOR._|grasp.event.+1.AUTHOR._|grasp.event.70000.AUTHOR._|grasp.event.1.LARGE._|" +
			"grasp.event.1.AUTHOR.xyz|grasp.event.1.AUTHOR._._": refuses(ParseEventSubject),
		"|grasp.candidate.|grasp.candidate.sync|grasp.candidate.sync.weekly|x.user":          refuses(ParseLane),
		"|grasp.rejected.1|grasp.rejected.1.x|grasp.rejected.x.SHORT":                        refuses(ParseRejectedSubject),
		"|grasp.target.|grasp.target.a b":                                                    refuses(ParseTargetSubject),
		"|grasp.verdict.|grasp.verdict.a.b|grasp.verdict.>|grasp.event.1|grasp.verdict.LONG": refuses(ParseVerdictSubject),
		"|grasp.repo.07|grasp.repo.07.explode|grasp.repo.show.07|grasp.repo.07.show.x":       refuses(ParseRepoSubject),
		"|grasp.wanted.|grasp.wanted.a.b|grasp.wanted.a.=.b|grasp.wanted.a.=.b.c.d|grasp.wanted..=.a.b|grasp.wanted.a.=..b|grasp.wanted.a.=.a.|" +
			"grasp.wanted.a.=.a.b c|grasp.wanted.a.=.a=3Ab.c|grasp.target.a.=.a.b": refuses2(ParseWantedSubject),
		"|x|.x|x.": refuses2(ParseClaimKey),
	} {
		for _, subject := range strings.Split(words.Replace(bad), "|") {
			if !refused(subject) {
				t.Errorf("%q is taken", subject)
			}
		}
	}
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, l := range []Lane{LaneUser, LaneRelease, LaneSyncLive, LaneSyncHistoric, LaneSyncDaily} {
		if back, err := ParseLane(l.Subject()); err != nil || back != l {
			t.Errorf("lane %s: %v, %v", l, back, err)
		}
	}
	r := RejectedSubject{Kind: 30618, ShortID: someID[:ShortIDLength]}
	if back, err := ParseRejectedSubject(r.String()); err != nil || back != r {
		t.Errorf("rejected: %v, %v", back, err)
	}
	target, err := TargetSubject("relay.example.com:81/a")
	if back, parsed := ParseTargetSubject(target); err != nil || parsed != nil || back != "relay.example.com:81/a" {
		t.Errorf("target: %v, %v, %v", back, err, parsed)
	}
	for _, ref := range []string{"", "30617:", "30617:aa", "30618:aa:x", "30617:aa:" + strings.Repeat("x", 2*MaxEncodedLength)} {
		if wanted, err := WantedSubject("a", ref); err == nil {
			t.Errorf("wanted of %q: %q", ref, wanted)
		}
	}
	if back, err := ParseVerdictSubject(VerdictSubject("aZ09")); err != nil || back != "aZ09" {
		t.Errorf("verdict: %v, %v", back, err)
	}
}

// FuzzSubjects: what is parsed is built to the same, and what is built is parsed to the same.
func FuzzSubjects(f *testing.F) {
	f.Add("grasp.wanted.a.b.=."+author+".repo", "a.b", "30617:"+author+":repo")
	f.Add("grasp.wanted.a.=.aa.=", "a", "30617:aa:a:b.c")
	f.Add("grasp.event.1."+author+"."+someID[:ShortIDLength], "relay.example.com:81/a", "30617:aa:a.b:c *>")
	f.Add("grasp.event.30617."+author+"._", "a", "30617:aa:é/=")
	f.Add(ShardName(ShardOf("x"))+".x.30617."+someID[:ShortIDLength], "../..", "30617:aa:")
	same := func(t *testing.T, text, again string, err error) {
		t.Helper()
		if err != nil || again != text {
			t.Fatalf("%q parses to what is %q, %v", text, again, err)
		}
	}
	f.Fuzz(func(t *testing.T, subject, key, ref string) {
		if s, err := ParseEventSubject(subject); err == nil {
			same(t, subject, s.String(), nil)
		}
		if of, back, err := ParseWantedSubject(subject); err == nil {
			again, err := WantedSubject(of, back)
			same(t, subject, again, err)
		}
		if wanted, err := WantedSubject(key, ref); err == nil {
			of, back, err := ParseWantedSubject(wanted)
			same(t, key+ref, of+back, err)
		}
		held, err := HeldKey(key, &nostr.Event{ID: someID, Kind: 30617, PubKey: author})
		if parts := strings.Split(held, "."); err == nil {
			back, err := DecodeIdentifier(parts[1])
			same(t, key, back, err)
			if len(parts) != 5 || !validKey(held) {
				t.Fatalf("%q", held)
			}
		}
	})
}
