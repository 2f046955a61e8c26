package nostr_test

import (
	"fmt"
	"testing"

	. "tendril.dev/lib/nostr"
	"tendril.dev/test/fixture"
)

func TestParsePullRequest(t *testing.T) {
	t.Parallel()
	for _, c := range fixture.Rows(`
		pull request                    | 1618 | a,30617:ALICE:x;c,COMMIT1;clone,https://b.example/x.git,ssh://b.example/x.git;branch-name,fix | COMMIT1 [30617:ALICE:x] [https://b.example/x.git ssh://b.example/x.git] false
		pull request that tags an event | 1618 | a,30617:ALICE:x;c,COMMIT1;e,ID1               | COMMIT1 [30617:ALICE:x] [] false
		update                          | 1619 | a,30617:ALICE:x;c,COMMIT1;e,ID2;E,ID1;P,BOB   | COMMIT1 [30617:ALICE:x] [] true ID1
		update by a alone               | 1619 | a,30617:ALICE:x;c,COMMIT1;E,rubbish           | COMMIT1 [30617:ALICE:x] [] true
		update by e alone               | 1619 | c,SHA256;e,short;e,ID2;e,ID3                  | SHA256 [] [] true ID2
		update by a marked e            | 1619 | c,COMMIT1;e,ID2;e,ID3,,root                   | COMMIT1 [] [] true ID3`) {
		ev := written(c[1], "BOB", c[2])
		pr, err := ParsePullRequest(ev)
		fixture.Must(t, err)
		if got, want := fmt.Sprintf("%s %v %v %t %s", pr.Commit, pr.Repos, pr.Clone, pr.Update, pr.Root), words.Replace(c[3]); got != want && got != want+" " || pr.Event != ev {
			t.Errorf("%s: got  %s\nwant %s", c[0], got, want)
		}
	}
}

func TestParsePullRequestRefuses(t *testing.T) {
	check(t, ParsePullRequest, `
		wrong kind          | 1617 | BOB | a,30617:ALICE:x;c,COMMIT1              | kind 1617
		author              | 1618 |     | a,30617:ALICE:x;c,COMMIT1              | author
		no commit           | 1618 | BOB | a,30617:ALICE:x                        | c tag
		not a commit        | 1618 | BOB | a,30617:ALICE:x;c,main                 | c tag
		the null commit     | 1618 | BOB | a,30617:ALICE:x;c,0000000000000000000000000000000000000000 | c tag
		no repository       | 1618 | BOB | c,COMMIT1;a,30618:ALICE:x              | a tag
		update of nothing   | 1619 | BOB | a,30618:ALICE:x;c,COMMIT1              | E tag
		update of rubbish   | 1619 | BOB | c,COMMIT1;E,rubbish;e                  | E tag
		too many clone URLs | 1618 | BOB | c,COMMIT1;a,30617:ALICE:x;cloneMANY    | clone`, "MANY", many(",https://b.example/%d.git", MaxURLs+1))
}
