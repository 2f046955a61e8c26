package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

var (
	owner = strings.Repeat("a1", 32)
	now   = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
)

func npub(t testing.TB) string {
	t.Helper()
	s, err := nip19.EncodePublicKey(owner)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func naddr(t testing.TB, kind int, identifier string) string {
	t.Helper()
	s, err := nip19.EncodeEntity(owner, kind, identifier, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestParseRepo(t *testing.T) {
	t.Parallel()
	note, err := nip19.EncodeNote(owner)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		npub(t) + "/tree":                 "tree",
		npub(t) + "/a/b:c d":              "a/b:c d",
		"30617:" + owner + ":tree":        "tree",
		"30617:" + owner + ":a:b":         "a:b",
		naddr(t, 30617, "tree"):           "tree",
		npub(t):                           "",
		npub(t) + "/":                     "",
		npub(t) + "/" + "a\nb":            "",
		naddr(t, 30618, "tree"):           "",
		naddr(t, 30617, "tree") + "/tree": "",
		note + "/tree":                    "",
		owner + "/tree":                   "",
		"30617:" + owner:                  "",
		"tree":                            "",
		"":                                "",
	} {
		got, err := parseRepo(name)
		if want == "" {
			if err == nil {
				t.Errorf("%q is taken for %v", name, got)
			}
			continue
		}
		if (err != nil || got != nostr.RepoRef{PubKey: owner, Identifier: want}) {
			t.Errorf("%q: %v, %v; want the identifier %q", name, got, err, want)
		}
	}
}

// FuzzParseRepo: what is taken for a repository can be written and is read as the same.
func FuzzParseRepo(f *testing.F) {
	for _, name := range []string{npub(f) + "/tree", npub(f) + "/a/b", naddr(f, 30617, "tree"), "30617:" + owner + ":a:b", "npub1x/y", "30617:::"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		ref, err := parseRepo(name)
		if err != nil {
			return
		}
		for _, again := range []string{ref.String(), nameRepo(ref.String())} {
			if back, err := parseRepo(again); err != nil || back != ref {
				t.Errorf("%q is read as %v, %v; want %v", again, back, err, ref)
			}
		}
	})
}

func TestRepoList(t *testing.T) {
	t.Parallel()
	ref := "30617:" + owner + ":tree"
	var b strings.Builder
	if err := writeRepos(&b, nil, now); err != nil || b.String() != "no repository waits for its removal\n" {
		t.Fatalf("%q, %v", b.String(), err)
	}
	b.Reset()
	err := writeRepos(&b, []proto.RepoStatus{
		{Ref: ref, Reason: "deleted", Since: now.Add(-time.Hour), Until: now.Add(167 * time.Hour)},
		{Ref: ref, Reason: "deleted", Since: now.Add(-time.Hour), Until: now.Add(19*time.Second + time.Millisecond)},
		{Ref: ref, Reason: "moved", Since: now.Add(-time.Hour), Kept: true},
		{Ref: ref, Reason: "deleted", Since: now.Add(-200 * time.Hour), Until: now.Add(-time.Hour)},
		{Ref: ref + "\x1b[2J"},
	}, now)
	want := `REPOSITORY                                                            SINCE                REMOVED                            WHY
NPUB/tree       2026-11-22 11:00:00  2026-11-29 11:00:00, in 167h0m0s   deleted by its owner
NPUB/tree       2026-11-22 11:00:00  2026-11-22 12:00:19, in 19s        deleted by its owner
NPUB/tree       2026-11-22 11:00:00  never: cancelled by an operator    its owner's announcement does not list this service
NPUB/tree       2026-11-14 04:00:00  now                                deleted by its owner
30617:OWNER:tree?[2J  -                    never                              it is not announced, and the log does not say that its owner gave it up
`
	if got, want := strings.Join(strings.Fields(b.String()), " "), strings.Join(strings.Fields(strings.NewReplacer("NPUB", npub(t), "OWNER", owner).Replace(want)), " "); err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestRepoShow(t *testing.T) {
	t.Parallel()
	s := proto.RepoStatus{
		Ref: "30617:" + owner + ":tree", Reason: "deleted", Announcement: strings.Repeat("ab", 32), Since: now, Until: now.Add(time.Hour),
		References: 3, Bytes: 1536, Events: 2, States: 1, Beside: []string{"30617:" + strings.Repeat("b1", 32) + ":tree"},
	}
	var b strings.Builder
	if err := writeRepo(&b, s, now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"repository    " + npub(t) + "/tree\n", "state         not hosted: deleted by its owner\n", "removed       2026-11-22 13:00:00, in 1h0m0s\n",
		"references    3\n", "git objects   1.5 KiB\n", "2 name it; 1 states", "beside it     npub1",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	b.Reset()
	s.Damage = "read HEAD: \x1b[2J"
	if err := writeRepo(&b, s, now); err != nil || !strings.Contains(b.String(), "references    cannot be read: read HEAD: ?[2J\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
	for state, one := range map[string]proto.RepoStatus{"hosted": {Ref: s.Ref, Hosted: true}, "held: it waits for git data": {Ref: s.Ref, Held: true}} {
		b.Reset()
		if err := writeRepo(&b, one, now); err != nil || !strings.Contains(b.String(), "state         "+state+"\n") || strings.Contains(b.String(), "removed") {
			t.Errorf("%v\n%s", err, b.String())
		}
	}
}
