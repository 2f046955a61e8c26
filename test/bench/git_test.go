package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/test/world"
)

const (
	// gitRounds is how often each thing that git does is measured.
	gitRounds = 15
	// gitPushes is how often a repository that five maintainers share is pushed to.
	gitPushes = 100
	// gitBytes is its size.
	gitBytes = 50 << 20
)

// gitUser is an owner with a repository in Tendril and the same one behind git http-backend.
type gitUser struct {
	*testing.T
	at     *world.Tendril
	who    *world.Person
	work   *world.WorkTree
	signed int // states
}

const gitRepository = "measured"

func (u *gitUser) url(of *world.Person) string {
	return u.at.URL + "/" + of.Npub + "/" + gitRepository + ".git"
}

// announce publishes a state with the branch as it is.
func (u *gitUser) announce() {
	u.Helper()
	u.signed++
	tags := nostr.Tags{{"d", gitRepository}, {"refs/heads/main", u.work.Refs()["refs/heads/main"]}, {"HEAD", "ref: refs/heads/main"}}
	if ok, message := world.Submit(u, u.at.Relay(), u.who.SignAt(nostr.Now()+nostr.Timestamp(u.signed), 30618, "", tags...)); !ok {
		u.Fatal(message)
	}
}

// gitBeside measures what git does for a user, beside git's own server on the same machine: each
// thing by turns here and there.
func gitBeside(t *testing.T, s *stage) {
	p := world.Start(t, map[string]string{"NGIT_EVENTS_PER_MINUTE_PER_IP": "100000", "NGIT_GIT_REQUESTS_PER_MINUTE_PER_IP": "100000"})
	u := &gitUser{T: t, at: p, who: world.NewPerson(), work: world.NewWorkTree(t)}
	for i := range 50 {
		u.work.AddNoise(100 << 10)
		u.work.Commit(fmt.Sprint(i))
	}
	if ok, message := world.Submit(t, p.Relay(), u.who.Announce(gitRepository, gitRepository, nil, nil)); !ok {
		t.Fatal(message)
	}
	u.announce()
	here := u.url(u.who)
	world.Git(t, u.work.Dir, "push", "-q", here, "main")
	git := world.NewGitServer(t)
	there := git.Host(gitRepository, u.work)
	git.Allow(gitRepository)

	compare := func(what string, floor float64, prepare func(), args func(url string) []string) {
		var ours, gits []time.Duration
		for range gitRounds {
			prepare()
			for url, took := range map[string]*[]time.Duration{here: &ours, there: &gits} {
				command := args(url)
				began := time.Now()
				world.Git(t, u.work.Dir, command...)
				*took = append(*took, time.Since(began))
			}
		}
		slices.Sort(ours)
		slices.Sort(gits)
		mine, its := ours[gitRounds/2], gits[gitRounds/2]
		s.add("git: "+what, fmt.Sprintf("%v, %.2f times", mine.Round(time.Millisecond), mine.Seconds()/its.Seconds()),
			fmt.Sprintf("≤ %.2f times", floor), fmt.Sprintf("git http-backend: %v", its.Round(time.Millisecond)))
	}
	clones := 0
	clone := func(options ...string) func(string) []string {
		return func(url string) []string {
			clones++
			return append(append([]string{"clone", "-q"}, options...), url, filepath.Join(t.TempDir(), fmt.Sprint(clones)))
		}
	}
	compare("push of one small commit", 1.3, func() {
		u.work.Commit(fmt.Sprint("small ", u.signed))
		u.announce()
	}, func(url string) []string { return []string{"push", "-q", url, "main"} })
	compare("ls-remote", 1.05, func() {}, func(url string) []string { return []string{"ls-remote", "-q", url} })
	compare("clone of 5 MB", 1.05, func() {}, clone())
	compare("shallow clone", 1.2, func() {}, clone("--depth=1"))
	gitShared(t, s)
}

// gitShared measures the disk that a repository of five maintainers needs, before and after pushes
// and housekeeping.
func gitShared(t *testing.T, s *stage) {
	p := world.Start(t, map[string]string{"NGIT_EVENTS_PER_MINUTE_PER_IP": "100000", "NGIT_GIT_REQUESTS_PER_MINUTE_PER_IP": "100000"})
	u := &gitUser{T: t, at: p, who: world.NewPerson(), work: world.NewWorkTree(t)}
	people := []*world.Person{u.who}
	for range 4 {
		people = append(people, world.NewPerson())
	}
	for _, who := range people {
		if ok, message := world.Submit(t, p.Relay(), who.Announce(gitRepository, gitRepository, nil, nil, nostr.Tag{"maintainers", u.who.PubKey})); !ok {
			t.Fatal(message)
		}
	}
	u.work.AddNoise(gitBytes)
	u.work.Commit("large")
	push := func() {
		u.announce()
		world.Git(t, u.work.Dir, "push", "-q", u.url(u.who), "main")
	}
	root := filepath.Join(p.Dir, "data", "git")
	all := func(what string, holds func(repository string) bool) {
		world.Await(t, what, func() bool {
			return !slices.ContainsFunc(people, func(who *world.Person) bool { return !holds(filepath.Join(root, who.Npub, gitRepository+".git")) })
		})
	}
	has := func(repository string) bool {
		tip, err := os.ReadFile(filepath.Join(repository, "refs", "heads", "main"))
		return err == nil && strings.TrimSpace(string(tip)) == u.work.Refs()["refs/heads/main"]
	}
	push()
	all("all five have the first state", has)
	first := world.Disk(t, root)
	var followed []time.Duration
	for i := range gitPushes {
		u.work.Commit(fmt.Sprint("push ", i))
		push()
		began := time.Now()
		all("all five have the push", has)
		followed = append(followed, time.Since(began))
	}
	all("housekeeping has been there", func(repository string) bool {
		_, err := os.Stat(filepath.Join(repository, "last-gc"))
		return err == nil
	})
	slices.Sort(followed)
	s.add(fmt.Sprintf("git: disk of five copies of %d MB", gitBytes>>20), fmt.Sprintf("%.2f times one; after %d pushes and a gc %.2f", float64(first)/gitBytes, gitPushes, float64(world.Disk(t, root))/gitBytes),
		"≤ 1.20 times", fmt.Sprintf("the four others follow a push after %v", followed[len(followed)/2].Round(time.Millisecond)))
}
