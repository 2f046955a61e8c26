package target_test

import (
	"math/rand/v2"
	"testing"

	"tendril.dev/lib/target"
	"tendril.dev/proto"
)

// TestSumsTellTargetsApart: random targets, and those that changes lead to, have the same sum if
// and only if they are the same, whether it was worked out in part before or not.
func TestSumsTellTargetsApart(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(5, 6))
	var before target.Target
	for range 40 {
		to := randomTarget(rnd)
		var folded target.Folded
		for _, c := range target.Snapshot(before, 20_000) {
			folded.Take(c)
		}
		for _, c := range target.Diff(before, to, 20_000) {
			folded.Take(c)
		}
		if got := folded.Target().Sum(); got != to.Sum() {
			t.Fatalf("%v: %s when it is folded, %s as it is", to, got, to.Sum())
		}
		if same := before.Sum() == to.Sum(); same != equal(before, to) {
			t.Fatalf("%v and %v: the same sum: %v", before, to, same)
		}
		for ref, r := range to.Repos {
			to.Repos[ref] = r.Summed()
		}
		if to.Sum() != folded.Target().Sum() {
			t.Fatal("another sum when it was worked out before")
		}
		before = to
	}
}

// TestSumsOfNearlyTheSame: every part counts, and none can be taken for another.
func TestSumsOfNearlyTheSame(t *testing.T) {
	t.Parallel()
	with := func(ref string, r target.Repo) target.Target {
		return target.Target{URL: "wss://a", Repos: map[string]target.Repo{ref: r}}
	}
	id := target.ID{1}
	seen := map[string]int{}
	for n, x := range []target.Target{
		{}, {URL: "wss://a"}, {URL: "wss://b"}, {URL: "wss://a", Bootstrap: true},
		with("x", target.Repo{}), with("y", target.Repo{}), with("x", target.Repo{Level: proto.LevelFull}), with("x", target.Repo{Level: proto.LevelStateOnly}),
		with("x", target.Repo{Level: proto.LevelStateOnly, Authors: []string{"ab"}}), with("x", target.Repo{Level: proto.LevelStateOnly, Authors: []string{"a", "b"}}),
		with("x", target.Repo{Level: proto.LevelFull, Roots: []target.ID{id}}), with("x", target.Repo{Level: proto.LevelFull, Roots: []target.ID{id, {2}}}),
		with("x", target.Repo{Authors: []string{string(id[:])}}), with("x", target.Repo{Roots: []target.ID{id}}),
	} {
		if other, known := seen[x.Sum()]; known {
			t.Errorf("%d has the sum of %d", n, other)
		}
		seen[x.Sum()] = n
	}
	// What was worked out of a value is not that of what a change makes of it.
	r := target.Repo{Level: proto.LevelFull}.Summed()
	if after := with("x", r).Apply(proto.TargetChange{URL: "wss://a", Repos: []proto.RepoChange{{Ref: "x", Roots: []string{id.String()}}}}); after.Sum() == with("x", r).Sum() {
		t.Error("a change leaves the sum as it was")
	}
}
