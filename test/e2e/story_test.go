package e2e

import (
	"maps"
	"testing"

	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/outside"
	"tendril.dev/test/world"
)

// apart runs every service as a process of its own, twice, around a NATS that is not ours and
// permits each only what it needs.
func apart(t *testing.T, place *world.Place, more map[string]string) (first, second []*world.Replica) {
	t.Helper()
	nats, volume := world.GuardedNATS(t), world.Folder(t)
	settings := map[string]string{"NGIT_WORKER_TTL": "20s", "TENDRIL_TEST_CANDIDATE_ACK_WAIT": "5s"}
	maps.Copy(settings, more)
	first, second = nats.StartAs(volume, settings, world.Services...), nats.StartAs(volume, settings, world.Services...)
	await(t, "the shards are shared out, so that none moves during a push", func() bool {
		shards := func(r *world.Replica) (n float64) {
			for _, held := range scrape(t, r.Observation())["purgatory_shards_held"] {
				n += held.value
			}
			return n
		}
		one, other := shards(first[1]), shards(second[1])
		return one > 0 && other > 0 && one+other == proto.Shards
	})
	place.TB, place.Door, place.Other, place.Volume = t, first[4].Door(), second[4].Door(), volume
	place.Tool = func(args ...string) (string, error) {
		return world.RunToEnd(t, volume, nats.As("operator", map[string]string{"NGIT_NATS_URL": nats.URL}), args...)
	}
	return first, second
}

// TestStories tells all stories in one process, and with services apart. There they go on when one
// of each is killed.
func TestStories(t *testing.T) {
	t.Parallel()
	meet := func(t *testing.T) (*world.Place, map[string]string) {
		place := &world.Place{Git: world.NewGitServer(t), First: world.NewRelayThat(t, outside.Behaviour{}), Second: world.NewRelay(t), Index: world.NewRelay(t)}
		place.Operator = fixture.NewPerson()
		return place, map[string]string{"NGIT_SYNC_BOOTSTRAP_RELAY_URL": place.First.URL, "NGIT_RELAY_OWNER_NSEC": place.Operator.Secret,
			"NGIT_USER_INDEX_RELAYS": place.Index.URL}
	}
	tell := func(t *testing.T, place *world.Place) {
		for _, story := range world.Stories {
			t.Run(story.Name, func(t *testing.T) { story.Tell(place.In(t)) })
		}
	}
	t.Run("one process", func(t *testing.T) {
		t.Parallel()
		place, settings := meet(t)
		p := world.Start(t, settings)
		place.Door, place.Other, place.Tool, place.Volume, place.Bus = p.Door, p.Door, p.Tool, p.Dir+"/data/git", world.Listen(t, p.NATS)
		tell(t, place)
		if err := p.Stop(); err != nil {
			t.Errorf("the stop: %v", err)
		}
	})
	t.Run("services apart", func(t *testing.T) {
		t.Parallel()
		place, settings := meet(t)
		first, second := apart(t, place, settings)
		tell(t, place)
		// The world may reach the front door: probes are answered there too, metrics are not.
		door, watched := place.Door.URL, first[4].Observation()
		for url, want := range map[string]int{
			door + "/healthz": 200, door + "/readyz": 200, door + "/metrics": 404, watched + "/metrics": 200, watched + "/healthz": 200,
		} {
			if res, _ := world.Get(t, url); res.StatusCode != want {
				t.Errorf("%s answers %d, want %d", url, res.StatusCode, want)
			}
		}
		mine := place.Host("after", world.Hosting{Relays: []string{place.Second.URL}})
		world.CloneIs(t, mine.At(place.Other), mine.Pushed)
		for _, r := range first {
			r.Kill()
		}
		late := mine.Owner.Sign(1621, "after the crash", mine.Owner.Repo("after"))
		place.Second.Publish(late)
		place.Other.Serves(late)
		attempt := 0
		await(t, "a push is taken by the writer and the worker that are left", func() bool {
			attempt++
			return mine.Push(t, place.Other, attempt-1, place.Other.TrySubmit) == nil
		})
		place.Other.Serves(mine.State)
		world.Stop(t, second)
	})
}

// TestPurge: what an operator purges is removed by services apart, of which each has its login.
func TestPurge(t *testing.T) {
	t.Parallel()
	place := &world.Place{}
	apart(t, place, map[string]string{"NGIT_DELETION_GRACE": "3s"})
	world.Purge(place)
}
