package proto

import (
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

var (
	author = strings.Repeat("ab", 32)
	someID = strings.Repeat("0123456789abcdef", 4)
)

// TestAnyEventOf: the subjects of a kind are those of its events, and of no other kind whose number
// begins so.
func TestAnyEventOf(t *testing.T) {
	t.Parallel()
	for kind, want := range map[int]bool{1621: true, 16210: false, 162: false} {
		subject := EventSubjectOf(&nostr.Event{ID: someID, Kind: kind, PubKey: author}).String()
		prefix := strings.TrimSuffix(AnyEventOf(1621), ">")
		if got := strings.HasPrefix(subject, prefix); got != want || len(prefix) == len(AnyEventOf(1621)) {
			t.Errorf("%s is of %s: %v", subject, AnyEventOf(1621), got)
		}
	}
}

func TestEventSubjectIsIdentity(t *testing.T) {
	t.Parallel()
	other := strings.Repeat("f", 64)
	d := func(v string) nostr.Tags { return nostr.Tags{{"d", v}} }
	same := func(a, b nostr.Event) bool { return EventSubjectOf(&a) == EventSubjectOf(&b) }
	for _, tc := range []struct {
		name string
		a, b nostr.Event
		same bool
	}{
		{"regular events by id", nostr.Event{ID: someID, Kind: 1621, PubKey: author}, nostr.Event{ID: other, Kind: 1621, PubKey: author}, false},
		{"replaceable events of one author", nostr.Event{ID: someID, Kind: 10317, PubKey: author}, nostr.Event{ID: other, Kind: 10317, PubKey: author}, true},
		{"metadata is replaceable", nostr.Event{ID: someID, Kind: 0, PubKey: author}, nostr.Event{ID: other, Kind: 0, PubKey: author}, true},
		{"replaceable events of two authors", nostr.Event{ID: someID, Kind: 10317, PubKey: author}, nostr.Event{ID: other, Kind: 10317, PubKey: other}, false},
		{"addressable events of one d", nostr.Event{ID: someID, Kind: 30617, PubKey: author, Tags: d("x")}, nostr.Event{ID: other, Kind: 30617, PubKey: author, Tags: d("x")}, true},
		{"addressable events of two d", nostr.Event{ID: someID, Kind: 30617, PubKey: author, Tags: d("x")}, nostr.Event{ID: other, Kind: 30617, PubKey: author, Tags: d("y")}, false},
		{"addressable events of two kinds", nostr.Event{ID: someID, Kind: 30617, PubKey: author, Tags: d("x")}, nostr.Event{ID: other, Kind: 30618, PubKey: author, Tags: d("x")}, false},
	} {
		if got := same(tc.a, tc.b); got != tc.same {
			t.Errorf("%s: same subject %v, want %v", tc.name, got, tc.same)
		}
		s := EventSubjectOf(&tc.a)
		if !validSubject(s.String()) {
			t.Errorf("%s: %q is no subject", tc.name, s)
		}
		if back, err := ParseEventSubject(s.String()); err != nil || back != s {
			t.Errorf("%s: %q parses to %v, %v", tc.name, s, back, err)
		}
	}
}

func TestParsersRefuse(t *testing.T) {
	t.Parallel()
	short := someID[:ShortIDLength]
	for parser, subjects := range map[string]struct {
		parse func(string) error
		bad   []string
	}{
		"event": {func(s string) error { _, err := ParseEventSubject(s); return err }, []string{
			"", SubjectEventsMark, "grasp.event.1." + author, "grasp.event.01." + author + "._", "grasp.event.+1." + author + "._",
			"grasp.event.70000." + author + "._", "grasp.event.1." + strings.ToUpper(author) + "._", "grasp.event.1." + author + ".xyz",
			"grasp.event.1." + author + "._._"}},
		"lane":     {func(s string) error { _, err := ParseLane(s); return err }, []string{"", "grasp.candidate.", "grasp.candidate.sync", "grasp.candidate.sync.weekly", "x.user"}},
		"rejected": {func(s string) error { _, err := ParseRejectedSubject(s); return err }, []string{"", "grasp.rejected.1", "grasp.rejected.1.x", "grasp.rejected.x." + short}},
		"target":   {func(s string) error { _, err := ParseTargetSubject(s); return err }, []string{"", "grasp.target.", "grasp.target.a b"}},
		"wanted": {func(s string) error { _, _, err := ParseWantedSubject(s); return err }, []string{
			"", "grasp.wanted.", "grasp.wanted.a.b", "grasp.wanted.a.=.b", "grasp.wanted.a.=.b.c.d", "grasp.wanted..=.a.b", "grasp.wanted.a.=..b",
			"grasp.wanted.a.=.a.", "grasp.wanted.a.=.a.b c", "grasp.wanted.a.=.a=3Ab.c", "grasp.target.a.=.a.b"}},
		"verdict": {func(s string) error { _, err := ParseVerdictSubject(s); return err }, []string{"", "grasp.verdict.", "grasp.verdict.a.b", "grasp.verdict.>", "grasp.event.1", "grasp.verdict." + strings.Repeat("a", 65)}},
		"repo answer": {func(s string) error { _, err := ParseRepoAnswerSubject(s); return err }, []string{
			"", "grasp.repo.answer.", "grasp.repo.answer.a.b", "grasp.repo.answer.*", "grasp.repo.show.07", "grasp.repo.answer." + strings.Repeat("a", 65)}},
		"held": {func(s string) error { _, err := ParseHeldKey(s); return err }, []string{
			"", HeldMarkKey, "00.x.1." + short + ".y", ShardName((ShardOf("x")+1)%Shards) + ".x.1." + short, ShardName(ShardOf("x")) + ".x.1." + author}},
		"claim": {func(s string) error { _, _, err := ParseClaimKey(s); return err }, []string{"", "x", ".x", "x."}},
	} {
		for _, s := range subjects.bad {
			if subjects.parse(s) == nil {
				t.Errorf("the %s parser took %q", parser, s)
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
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseTargetSubject(target); err != nil || back != "relay.example.com:81/a" {
		t.Errorf("target: %v, %v", back, err)
	}
	for _, ref := range []string{"30617:" + author + ":repo", "30617:aa:a.b:c *>", "30617:aa:", "30617:aa:é/="} {
		wanted, err := WantedSubject("relay.example.com:81/a", ref)
		if key, back, parsed := ParseWantedSubject(wanted); err != nil || parsed != nil || back != ref || key != "relay.example.com:81/a" {
			t.Errorf("wanted of %q: %q, %v; %q, %v", ref, wanted, err, back, parsed)
		}
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

func FuzzParseEventSubject(f *testing.F) {
	f.Add("grasp.event.30617." + author + "._")
	f.Add("grasp.event.1." + author + "." + someID[:ShortIDLength])
	f.Fuzz(func(t *testing.T, subject string) {
		if s, err := ParseEventSubject(subject); err == nil && s.String() != subject {
			t.Fatalf("%q parses to %v, which is %q", subject, s, s)
		}
	})
}

func FuzzWantedSubject(f *testing.F) {
	f.Add("grasp.wanted.a.b.=."+author+".repo", "a.b", "30617:"+author+":repo")
	f.Add("grasp.wanted.a.=.aa.=", "a", "30617:aa:a:b.c")
	f.Fuzz(func(t *testing.T, subject, key, ref string) {
		if of, back, err := ParseWantedSubject(subject); err == nil {
			if again, err := WantedSubject(of, back); err != nil || again != subject {
				t.Fatalf("%q is of %q, whose subject is %q, %v", subject, back, again, err)
			}
		}
		if subject, err := WantedSubject(key, ref); err == nil {
			if of, back, err := ParseWantedSubject(subject); err != nil || back != ref || of != key {
				t.Fatalf("the subject of %q is %q, which is of %q, %v", ref, subject, back, err)
			}
		}
	})
}

func FuzzHeldKey(f *testing.F) {
	f.Add("tendril", 30617)
	f.Add("../..", 1)
	f.Add(ShardName(ShardOf("x"))+".x.30617."+someID[:ShortIDLength], 65535)
	f.Fuzz(func(t *testing.T, identifier string, kind int) {
		if k, err := ParseHeldKey(identifier); err == nil {
			if again, err := k.Key(); err != nil || again != identifier {
				t.Fatalf("%q parses to %v, whose key is %q, %v", identifier, k, again, err)
			}
		}
		if kind < 0 || kind > 65535 {
			return
		}
		k := HeldKey{Identifier: identifier, Kind: kind, ShortID: someID[:ShortIDLength]}
		key, err := k.Key()
		if err != nil {
			return
		}
		if !validKey(key) {
			t.Fatalf("%q is no key", key)
		}
		if back, err := ParseHeldKey(key); err != nil || back != k {
			t.Fatalf("%q parses to %v, %v; want %v", key, back, err, k)
		}
	})
}
