package githttp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip19"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/nostr"
)

func TestTrafficNamesTheTop(t *testing.T) {
	t.Parallel()
	owner := strings.Repeat("1", 64)
	ref := func(i int) nostr.RepoRef { return nostr.RepoRef{PubKey: owner, Identifier: fmt.Sprintf("r%d", i)} }
	top := newMetrics(2).traffic
	for i := range 5 {
		top.add(ref(i), i*10)
	}
	top.add(ref(1), 100)
	npub, err := nip19.EncodePublicKey(owner)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`# HELP ngit_git_top_repos_bytes Bytes exchanged with git clients since the start, of the repositories with the most.
# TYPE ngit_git_top_repos_bytes gauge
ngit_git_top_repos_bytes{repo="NPUB/r1"} 110
ngit_git_top_repos_bytes{repo="NPUB/r4"} 40
`, "NPUB", npub)
	if err := testutil.CollectAndCompare(top, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	for i := range maxCounted + 10 {
		top.add(ref(i), 1)
	}
	if n := len(top.bytes); n > maxCounted || top.most()[0] != ref(1) {
		t.Errorf("%d repositories are counted, the first is %v", n, top.most()[0])
	}
}
