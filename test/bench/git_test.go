package bench

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tendril.dev/test/world"
)

// gitRounds is how often each thing that git does is measured.
const gitRounds = 15

// gitBeside measures what git does for a user, beside git's own server on the same machine: each
// thing by turns here and there.
func gitBeside(t *testing.T, s *stage) {
	p := world.Start(t, map[string]string{"NGIT_EVENTS_PER_MINUTE_PER_IP": "100000", "TENDRIL_TEST_GIT_REQUESTS_PER_MINUTE_PER_IP": "100000"})
	r := p.Host("measured", world.Hosting{})
	for i := range 50 {
		r.Work.AddNoise(100 << 10)
		r.Work.Commit(fmt.Sprint(i))
	}
	must(t, r.Push(t, p.Door, 0, p.TrySubmit))
	here := r.At(p.Door)
	git := world.NewGitServer(t)
	there := git.Host(r.Name, r.Work)
	git.Allow(r.Name)

	compare := func(what string, floor float64, prepare func(), args func(url string) []string) {
		var ours, gits []time.Duration
		for range gitRounds {
			prepare()
			for url, took := range map[string]*[]time.Duration{here: &ours, there: &gits} {
				command := args(url)
				began := time.Now()
				r.Work.Git(command...)
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
		r.Work.Commit("small " + rand.Text())
		must(t, p.TrySubmit(r.NewState()))
	}, func(url string) []string { return []string{"push", "-q", url, "main"} })
	compare("ls-remote", 1.05, func() {}, func(url string) []string { return []string{"ls-remote", "-q", url} })
	compare("clone of 5 MB", 1.05, func() {}, clone())
	compare("shallow clone", 1.2, func() {}, clone("--depth=1"))
}
