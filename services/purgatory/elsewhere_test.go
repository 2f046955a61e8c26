package purgatory_test

import (
	"fmt"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/fixture/gittest"
)

// TestAPullRequestOfTwoWorkers: a pull request names repositories of two identifiers, which two
// workers have, and waits for the first. It is released by a push to the second: to the one that it
// names, to that of a confirmed maintainer there, or to its author's own (GRASP-06).
func TestAPullRequestOfTwoWorkers(t *testing.T) {
	w := newWorld(t, "--grasp06-enable")
	two := start(t, "two", w.git, w.url, "--grasp06-enable")
	two.holds(t, 17)
	// Each is pushed to several others: of these, some are another worker's.
	first, others := "repo0", []string{"repo1", "repo2", "repo3", "repo4"}
	for _, identifier := range append(others, first) {
		alices, bobs := announcement("alice's "+identifier, alice, identifier), announcement("bob's "+identifier, bob, identifier)
		alices.Tags, bobs.Tags = append(alices.Tags, nostr.Tag{"maintainers", bob}), append(bobs.Tags, nostr.Tag{"maintainers", alice})
		w.in.accept(finish(alices))
		w.in.accept(finish(bobs))
	}
	for n, identifier := range others {
		refs := []nostr.RepoRef{repo(alice, first), repo(alice, identifier)}
		for what, to := range map[string]string{
			"the named one": w.address(alice, identifier), "a maintainer's": w.address(bob, identifier), "its author's": w.prs(carol, identifier),
		} {
			name := fmt.Sprintf("pushed to %s of %s", what, identifier)
			commit := w.work.Commit("a", fmt.Sprint(n, what))
			pr := pullFor(name, carol, commit, refs...)
			if what == "its author's" {
				pr.Tags = append(pr.Tags, nostr.Tag{"clone", "https://" + domain + nostr.PRsURLPath(npub(carol), identifier)})
				pr = finish(pr)
			}
			w.in.waits(first, pr)
			eventually(t, name, func() bool { // while shards move it is refused
				_, err := gittest.Try(t, w.work.Dir, "push", to, "HEAD:refs/nostr/"+pr.ID)
				return err == nil
			})
			w.released(pr)
			for _, ref := range refs {
				w.names(alice, ref.Identifier, pr, commit)
			}
		}
	}
}

// TestWhatIsHereInPart is fetched whole: a commit lies here, and its tree does not.
func TestWhatIsHereInPart(t *testing.T) {
	w := newWorld(t)
	w.pushFirst()
	c2, root := w.work.Commit("b", "2"), t.TempDir()
	w.work.Publish(root, "x.git")
	w.in.accept(again(announcement("newer", alice, "x", gittest.Backend(t, root).URL+"/x.git"), 1002))
	repo := w.repo(alice, "x")
	gittest.Input(t, repo.Path, []byte(gittest.Git(t, w.work.Dir, "cat-file", "commit", c2)+"\n"),
		"hash-object", "-t", "commit", "-w", "--stdin")
	if missing, err := repo.Missing(t.Context(), []string{c2}); err != nil || len(missing) > 0 {
		t.Fatalf("the commit is not here: %v", err)
	}
	st := state("state", alice, "x", 1003, c2)
	w.in.syncs("x", st)
	w.released(st)
	w.isAt(alice, "x", c2)
	must(t, repo.Fsck(t.Context()))
}
