package nostr

import (
	"reflect"
	"strings"
	"testing"
)

func TestParsePullRequest(t *testing.T) {
	t.Parallel()
	a := Tag{"a", RepoRef{alice, "x"}.String()}
	c := Tag{"c", commit1}
	repos := []RepoRef{{alice, "x"}}
	for _, test := range []struct {
		name string
		ev   *Event
		want PullRequest
	}{
		{"pull request", event(KindPR, bob, a, c, Tag{"clone", "https://b.example/x.git", "ssh://b.example/x.git"}, Tag{"branch-name", "fix"}),
			PullRequest{Commit: commit1, Repos: repos, Clone: []string{"https://b.example/x.git", "ssh://b.example/x.git"}}},
		{"pull request that tags an event", event(KindPR, bob, a, c, Tag{"e", key('1')}),
			PullRequest{Commit: commit1, Repos: repos}},
		{"update", event(KindPRUpdate, bob, a, c, Tag{"e", key('2')}, Tag{"E", key('1')}, Tag{"P", bob}),
			PullRequest{Commit: commit1, Repos: repos, Root: key('1'), Update: true}},
		{"update by e alone", event(KindPRUpdate, bob, Tag{"c", sha256Commit}, Tag{"e", "short"}, Tag{"e", key('2')}, Tag{"e", key('3')}),
			PullRequest{Commit: sha256Commit, Root: key('2'), Update: true}},
		{"update by a marked e", event(KindPRUpdate, bob, c, Tag{"e", key('2')}, Tag{"e", key('3'), "", "root"}),
			PullRequest{Commit: commit1, Root: key('3'), Update: true}},
	} {
		test.want.Event = test.ev
		if got, err := ParsePullRequest(test.ev); err != nil || !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s: got  %+v, %v\nwant %+v", test.name, got, err, test.want)
		}
	}
}

func TestParsePullRequestRefuses(t *testing.T) {
	a, c := Tag{"a", RepoRef{alice, "x"}.String()}, Tag{"c", commit1}
	tooMany := Tag{"clone"}
	for range MaxURLs + 1 {
		tooMany = append(tooMany, "https://b.example/x.git")
	}
	check(t, ParsePullRequest, []refusal{
		{"wrong kind", event(KindPatch, bob, a, c), "kind 1617"},
		{"author", event(KindPR, "", a, c), "author"},
		{"no commit", event(KindPR, bob, a), "c tag"},
		{"not a commit", event(KindPR, bob, a, Tag{"c", "main"}), "c tag"},
		{"the null commit", event(KindPR, bob, a, Tag{"c", strings.Repeat("0", 40)}), "c tag"},
		{"no repository", event(KindPR, bob, c, Tag{"a", "30618:" + alice + ":x"}), "a tag"},
		{"update of nothing", event(KindPRUpdate, bob, a, c), "E tag"},
		{"update of rubbish", event(KindPRUpdate, bob, a, c, Tag{"E", "rubbish"}, Tag{"e"}), "E tag"},
		{"too many clone URLs", event(KindPR, bob, a, c, tooMany), "clone"},
	}...)
}
