package main

import (
	"bufio"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

var (
	owner   = strings.Repeat("a1", 32)
	npub, _ = nip19.EncodePublicKey(owner)
	ref     = "30617:" + owner + ":tree"
)

func TestRepoName(t *testing.T) {
	t.Parallel()
	note, _ := nip19.EncodeNote(owner)
	naddr := func(kind int) string {
		s, _ := nip19.EncodeEntity(owner, kind, "tree", nil)
		return s
	}
	for name, want := range map[string]string{
		npub + "/tree": "tree", npub + "/a/b:c d": "a/b:c d", ref: "tree", "30617:" + owner + ":a:b": "a:b", naddr(30617): "tree",
		npub: "", npub + "/": "", npub + "/a\nb": "", naddr(30618): "", naddr(30617) + "/tree": "", note + "/tree": "", "30617:" + owner: "", "tree": "", "": "",
	} {
		var got repoName
		err := got.UnmarshalText([]byte(name))
		if want == "" && err == nil || want != "" && (err != nil || got.RepoRef != nostr.RepoRef{PubKey: owner, Identifier: want} || nameRepo(got.String()) != npub+"/"+want) {
			t.Errorf("%q: %v, %v; want the identifier %q", name, got, err, want)
		}
	}
}

// TestPersons: every form of a public key is one on the command line, and nothing else is. A text
// that repositories are chosen by may be each form of an owner or a repository.
func TestPersons(t *testing.T) {
	t.Parallel()
	nprofile, _ := nip19.EncodeProfile(owner, nil)
	naddr, _ := nip19.EncodeEntity(owner, nostr.KindAnnouncement, "tree", nil)
	for text, want := range map[string]string{
		npub: npub, owner: npub, strings.ToUpper(owner): npub, nprofile: npub, "nostr:" + npub: npub,
		"https://git.example.com/" + npub + "/tree.git": npub + "/tree", "nostr://" + npub + "/tree": npub + "/tree",
		naddr: npub + "/tree", ref: npub + "/tree", "/tr": "/tr", "npub1": "npub1", "": "",
	} {
		var key personKey
		var part repoText
		must(t, part.UnmarshalText([]byte(text)))
		if err := key.UnmarshalText([]byte(text)); (err == nil) != (want == npub) || key.npub() != "" && key.npub() != want || string(part) != want {
			t.Errorf("%q: %v and %q, %v, want %q", text, key, part, err, want)
		}
	}
}

// TestRepositoriesAreNamed as npub1…/identifier in JSON too.
func TestRepositoriesAreNamed(t *testing.T) {
	t.Parallel()
	for range 2 { // naming it again changes nothing
		if got := string(marshal(t, named(proto.RepoStatus{Ref: ref}))); !strings.Contains(got, `"ref":"`+npub+`/tree"`) {
			t.Error(got)
		}
	}
}

func TestRepoList(t *testing.T) {
	t.Parallel()
	all := from[[]proto.RepoStatus](t, strings.NewReplacer("OWNER", owner, "OTHER", strings.Repeat("b1", 32)).Replace(`[
		{"ref":"30617:OWNER:a","state":"hosted","bytes":10,"references":9,"changed":"2026-01-02T11:00:00Z"},
		{"ref":"30617:OWNER:b","state":"held","since":"2026-01-02T12:00:00Z","until":"2026-01-02T13:00:00Z"},
		{"ref":"30617:OWNER:c","state":"ended","bytes":2048,"references":1,"changed":"2026-01-02T12:00:00Z","reason":"deleted","since":"2026-01-02T11:00:00Z","until":"2026-01-09T11:00:00Z"},
		{"ref":"30617:OWNER:d","state":"ended","reason":"moved","since":"2026-01-02T11:00:01Z","kept":true},
		{"ref":"30617:OWNER:tree\u001b[2J","state":"ended","since":"2026-01-02T11:00:02Z","until":"2026-01-02T11:00:00Z"},
		{"ref":"30617:OTHER:a"}]`))
	const head = "REPOSITORY STATE SIZE REFS LAST PUSH SINCE UNTIL "
	for want, c := range map[string]repoList{
		"no repositories": {Text: "zzz"},
		head + npub + "/a hosted 10 B 9 2026-01-02 11:00:00 - -":                                                                                  {Text: "/a", Owner: personKey(owner)},
		head + npub + "/b held 0 B 0 - 2026-01-02 12:00:00 2026-01-02 13:00:00":                                                                   {State: proto.RepoHeld},
		head + npub + "/c ended 2.0 KiB 1 2026-01-02 12:00:00 2026-01-02 11:00:00 2026-01-09 11:00:00, in 167h0m0s: deleted by its owner":         {Text: "/c"},
		head + npub + "/d ended 0 B 0 - 2026-01-02 11:00:01 never: cancelled by an operator: its owner's announcement does not list this service": {Text: "/d"},
		head + ref + "?[2J ended 0 B 0 - 2026-01-02 11:00:02 now: it is not announced, and the log does not say that its owner gave it up":        {Text: "tree"},
	} {
		var b strings.Builder
		c.Sort = "name"
		if writeRepos(&b, c.choose(slices.Clone(all)), noon); strings.Join(strings.Fields(b.String()), " ") != want {
			t.Errorf("%s\nwant\n%s", b.String(), want)
		}
	}
	for sort, want := range map[string]string{"name": "abcd", "size": "cabd", "push": "cabd", "since": "acdb"} {
		c, got := repoList{Sort: sort, Owner: personKey(owner)}, ""
		for _, s := range c.choose(slices.Clone(all)) {
			got += s.Ref[len(s.Ref)-1:]
		}
		if got != want {
			t.Errorf("by %s: %s, want %s", sort, got, want)
		}
	}
}

func TestWriteRepo(t *testing.T) {
	t.Parallel()
	ended := proto.RepoStatus{
		Ref: ref, Reason: "deleted", Announcement: strings.Repeat("ab", 32), Since: noon, Until: noon.Add(time.Hour),
		References: 3, Bytes: 1536, Events: 2, States: 1,
	}
	for want, s := range map[string]proto.RepoStatus{
		"repository    " + npub + "/tree\n": ended,
		"state         not hosted: deleted by its owner; removed: 2026-01-02 13:00:00, in 1h0m0s\n": ended,
		"git objects   1.5 KiB\nevents        2 name it; 1 states of the identifier\n":              ended,
		"references    read HEAD: ?[2J\n":                     {Ref: ref, Damage: "read HEAD: \x1b[2J"},
		"authority     no one has authority: it is so\n":      {Ref: ref, State: proto.RepoHosted, NoAuthority: "no one has authority: it is so"},
		"state         hosted\n":                              {Ref: ref, State: proto.RepoHosted},
		"state         held: it waits for git data until -\n": {Ref: ref, State: proto.RepoHeld},
	} {
		var b strings.Builder
		if writeRepo(&b, shownRepo{RepoStatus: s}, noon); !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	shown := shownRepo{RepoStatus: proto.RepoStatus{Ref: ref}, Head: "refs/heads/main", More: true}
	shown.URL, shown.Maintainers = "https://git.example.com/x.git", slices.Repeat([]string{npub}, 12)
	shown.BranchesAndTags = []proto.RepoReference{{Name: "refs/heads/main", Object: "c1"}, {Name: "refs/tags/\x1b[2J", Object: "c2"}}
	var b strings.Builder
	const want = "maintainers   and 2 more\nheads/main    c1 (HEAD)\ntags/?[2J     c2\nmore          git ls-remote shows all branches and tags\n"
	if writeRepo(&b, shown, noon); !strings.HasSuffix(b.String(), want) || !strings.Contains(b.String(), "address       "+shown.URL+"\n") {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}

// TestARemovalIsConfirmed: nothing but a yes is one, and an answer is not taken for the next one.
func TestARemovalIsConfirmed(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"": "n", "\n": "n", "n\ny\n": "ny", "y\nn\nYES\r\n": "yny", " yes \n\x1b[A\ny": "yny", "yess\nye\n": "nn",
		"y" + strings.Repeat(" ", 1000): "y", strings.Repeat("y", 1000) + "\ny\n": "ny",
	} {
		in, got := bufio.NewScanner(strings.NewReader(input)), ""
		for range want {
			if confirmed(in, io.Discard, "tree") {
				got += "y"
			} else {
				got += "n"
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", input, got, want)
		}
	}
}

// FuzzRepoName: what is taken for a repository can be written and is read as the same.
func FuzzRepoName(f *testing.F) {
	f.Add(npub + "/a/b")
	f.Add("30617:" + owner + ":a:b")
	f.Fuzz(func(t *testing.T, name string) {
		var got, again repoName
		if got.UnmarshalText([]byte(name)) == nil && (again.UnmarshalText([]byte(nameRepo(got.String()))) != nil || again != got) {
			t.Errorf("%q is read as %v, and that as %v", name, got, again)
		}
	})
}
