package purgatory

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/githttp"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/repostate"
	"tendril.dev/test/fixture"
)

// readCounter counts the accepted events that are read.
type readCounter struct {
	query.Source
	read atomic.Int32
}

func (c *readCounter) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		for ev, err := range c.Source.Query(ctx, f) {
			if c.read.Add(1); !yield(ev, err) {
				return
			}
		}
	}
}

// crowded is a worker that does not run, with all shards. alice's repository "x" has bob as its
// lead and carol as a maintainer, among so many strangers who announce the same identifier here,
// half of them accepted and half held, and list these three; each second one names bob as lead.
func crowded(t testing.TB, strangers int) (w *worker, read *readCounter, alice, bob *fixture.Person) {
	t.Helper()
	const domain = "git.example.com"
	s, err := config.Process().Parse([]string{"--domain=" + domain, "--relay-data-path=" + t.TempDir(),
		"--git-data-path=" + t.TempDir(), "--database-backend=memory", "--git-listen=127.0.0.1:0", "--nats-listen=127.0.0.1:0"})
	fixture.Must(t, err)
	n, err := node.Open(t.Context(), "purgatory", s, slog.New(slog.DiscardHandler), false)
	fixture.Must(t, err)
	t.Cleanup(func() { fixture.Must(t, n.Close()) })
	read = &readCounter{Source: n.Accepted}
	n.Accepted = read
	w, err = newWorker(t.Context(), n, defaultConstants)
	fixture.Must(t, err)
	for shard := range proto.Shards {
		w.shards.Open(shard, t.Context())
	}
	w.schedule.hunter = hunt.New(hunt.Options{Base: time.Hour, Max: time.Hour, Look: func(string, string, time.Time) {},
		Share: func() (place, workers int) { return 0, 1 }, Log: n.Log})
	w.notices.metrics = newMetrics(n.Metrics, w)

	person := func(n int) *fixture.Person { return fixture.Unsigned(fmt.Sprintf("%064x", n)).On(domain) }
	alice, bob = person(1), person(2)
	carol := person(3)
	announce := func(who *fixture.Person, at int, roles ...string) *nostr.Event {
		tags := who.Announce("x").Tags[:4] // without maintainers
		for i := 0; i < len(roles); i += 2 {
			tags = append(tags, nostr.Tag{roles[i], roles[i+1]})
		}
		return who.At(nostr.Timestamp(at)).Sign(nostr.KindAnnouncement, "", tags...)
	}
	m, lead := "m", "M"
	accepted := []*nostr.Event{
		announce(alice, 100, lead, bob.PubKey, m, alice.PubKey, m, carol.PubKey),
		announce(bob, 100, lead, bob.PubKey, m, alice.PubKey),
		announce(carol, 100, m, carol.PubKey, m, alice.PubKey),
		bob.At(150).State("x", map[string]string{"refs/heads/main": strings.Repeat("c", 40)}),
	}
	var changes []held.Change
	for i := range strangers {
		letter := map[bool]string{true: lead, false: m}[i%4 < 2]
		ev := announce(person(1<<32+i), 200+i, letter, bob.PubKey, m, alice.PubKey, m, carol.PubKey)
		if i%2 == 0 {
			accepted = append(accepted, ev)
			continue
		}
		e, err := held.NewEntry(proto.Held{Event: ev, Identifier: "x", Phase: proto.PhaseWaiting,
			HeldAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)})
		fixture.Must(t, err)
		changes = append(changes, held.Change{Seq: uint64(len(changes) + 1), Key: e.Key, Entry: e})
	}
	var records []eventdb.Record
	for i, ev := range accepted {
		records = append(records, eventdb.Record{Seq: uint64(i + 1), Event: ev})
	}
	fixture.Must(t, n.Index.Apply(records))
	w.knowledge.holdings.Apply(changes...)
	repo, err := w.store.At(placeOf(alice.PubKey, "x"))
	fixture.Must(t, err, repo.WithLock(t.Context(), func(repo *repository.Locked) error { return ensure(t.Context(), repo) }))
	return w, read, alice, bob
}

// workAmongStrangers is what is done for alice's repository, by name.
func workAmongStrangers(w *worker, alice, bob *fixture.Person) map[string]func(context.Context) error {
	at := placeOf(alice.PubKey, "x")
	push := githttp.PushRequest{Ref: at.RepoRef, Changes: []repostate.Change{{Name: "refs/heads/main", New: strings.Repeat("d", 40)}}}
	look := func(t task) func(context.Context) error {
		t.identifier = "x"
		return func(ctx context.Context) error { return w.pushes.reconciler.reconcile(ctx, t) }
	}
	places := func(owner *fixture.Person, how reach) task {
		return task{places: map[repository.Place]reach{placeOf(owner.PubKey, "x"): how}}
	}
	return map[string]func(context.Context) error{
		"a push that is refused": func(ctx context.Context) error {
			if _, err := w.pushes.decide(ctx, push); err == nil || !strings.Contains(err.Error(), "differs in refs/heads/main") {
				return fmt.Errorf("the push is not refused as it should be: %w", err)
			}
			return nil
		},
		"a look after a push":        look(places(alice, maintainerGroup)),
		"a look after a state":       look(places(bob, maintainerGroup)),
		"a look after an acceptance": look(places(alice, groupAndAcceptedPRs)),
		"a look at what is held":     look(task{identifierOnly: true}),
		"what a page and why wait for": func(ctx context.Context) error {
			w.answers.waits(ctx, at.RepoRef)
			return nil
		},
		"what housekeeping asks": func(ctx context.Context) error {
			_, err := newHousekeeping(w.env, w.knowledge).keepsAll(ctx, at)
			return err
		},
	}
}

// TestStrangersAreNotRead: what is done for a repository reads the announcements and states of the
// people in its chain, and next to nothing of 10,000 strangers who announce the same identifier and
// list these people.
func TestStrangersAreNotRead(t *testing.T) {
	t.Parallel()
	w, read, alice, bob := crowded(t, 10_000)
	for name, do := range workAmongStrangers(w, alice, bob) {
		before := read.read.Load()
		if err := do(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %d events read", name, read.read.Load()-before)
		if n := read.read.Load() - before; n > 40 {
			t.Errorf("%s reads %d accepted events", name, n)
		}
	}
	if n := len(w.schedule.queue.causes["x"].repositories); n > 3 {
		t.Errorf("%d repositories are to be looked at", n)
	}
}

// TestScope: of a crowd that may change with a repository a few come at once, those first that are not
// strangers' who only point to the lead, and the rest later. Others are left alone.
func TestScope(t *testing.T) {
	t.Parallel()
	const strangers = 40
	w, _, alice, bob := crowded(t, strangers)
	var keys []string
	var places []repository.Place
	for n := range strangers {
		keys = append(keys, fmt.Sprintf("%064x", 1<<32+n))
		places = append(places, placeOf(keys[n], "x"))
	}
	v, err := w.knowledge.around(t.Context(), "x", keys, nil)
	fixture.Must(t, err)
	if !w.schedule.note(v, places) || w.schedule.note(v, places) {
		t.Error("what repositories depend on was known before, or is not known then")
	}
	for _, tc := range []struct {
		why, owner  string
		reach       reach
		scope, rest int
	}{
		{"the lead", bob.PubKey, maintainerGroup, maxTouched, strangers/2 + 3 - maxTouched},
		{"the lead alone", bob.PubKey, repoOnly, 1, 0},
		{"a maintainer", alice.PubKey, maintainerGroup, maxTouched, strangers/2 + 3 - maxTouched},
		{"a stranger who lists the lead", keys[2], maintainerGroup, 1, 0},
		{"who announces nothing", fmt.Sprintf("%064x", 9), maintainerGroup, 1, 0},
	} {
		scope, rest, err := w.pushes.reconciler.scopeOf(t.Context(),
			task{identifier: "x", places: map[repository.Place]reach{placeOf(tc.owner, "x"): tc.reach}})
		if err != nil || len(scope) != tc.scope || len(rest) != tc.rest || scope[0].PubKey != tc.owner {
			t.Errorf("%s: %v, and %d more, %v", tc.why, scope, len(rest), err)
		}
		for _, at := range rest {
			if !w.schedule.isFollower(at) {
				t.Errorf("%s: %s is put off", tc.why, at)
			}
		}
	}
}

// BenchmarkAmongStrangers measures the same beside one stranger and beside 10,000.
func BenchmarkAmongStrangers(b *testing.B) {
	for _, strangers := range []int{1, 10_000} {
		w, _, alice, bob := crowded(b, strangers)
		for name, do := range workAmongStrangers(w, alice, bob) {
			b.Run(fmt.Sprintf("%s/%d", name, strangers), func(b *testing.B) {
				for b.Loop() {
					fixture.Must(b, do(b.Context()))
				}
			})
		}
	}
}
