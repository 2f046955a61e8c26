package relayconn

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// further is a target that people's relay lists lead to.
func further(url string, repos map[string]proto.Wanted) proto.Target {
	to := proto.Target{URL: url, Further: true, Repos: repos}
	for _, w := range repos {
		to.Live = to.Live || w.Roots
		to.Past = to.Past || w.Threads || w.Lists || w.Level == proto.LevelPast
	}
	return to
}

// TestVisits: the read relay of who opened an issue is asked for answers, live; a write relay for the
// past of the threads, an owner's for the past of the repository, and an index for lists, each once.
// Of none is layer 1 asked for.
func TestVisits(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	judge := newIngest(t, b)
	person := event(1, "", 0).PubKey
	issue := event(nostr.KindIssue, "issue", 3*time.Hour, nostr.Tag{"a", "30617:aa:x"})
	comment := event(nostr.KindComment, "comment", 2*time.Hour, nostr.Tag{"E", issue.ID})
	reply := event(nostr.KindComment, "reply", time.Hour, nostr.Tag{"e", comment.ID})
	list := event(nostr.KindRelayList, "list", time.Hour, nostr.Tag{"r", "wss://a.example"})
	announcement := event(nostr.KindAnnouncement, "an announcement", time.Hour, nostr.Tag{"d", "y"})
	// The issue is here already; all the rest lies elsewhere.
	_, err := b.JS.Publish(t.Context(), proto.EventSubjectOf(issue).String(), []byte(issue.String()))
	must(t, err)
	everything := []*nostr.Event{issue, comment, reply, list, announcement}
	reads, writes, owners, index := newForeign(t, everything...), newForeign(t, everything...), newForeign(t, everything...), newForeign(t, everything...)
	newWorker(t, b, "a")
	ref := proto.PersonRef(person)
	aim(t, b, reads.URL, further(reads.URL, map[string]proto.Wanted{ref: {Level: proto.LevelPerson, Roots: true}}))
	aim(t, b, writes.URL, further(writes.URL, map[string]proto.Wanted{ref: {Level: proto.LevelPerson, Threads: true}}))
	aim(t, b, owners.URL, further(owners.URL, map[string]proto.Wanted{"30617:aa:x": {Level: proto.LevelPast}}))
	aim(t, b, index.URL, further(index.URL, map[string]proto.Wanted{ref: {Level: proto.LevelPerson, Lists: true}}))
	asked := func(r *foreign) (tags []string, live bool, authors int) {
		r.look(func() {
			for _, f := range r.asked {
				for tag := range f.Tags {
					tags = append(tags, tag)
				}
				live, authors = live || f.LimitZero, authors+len(f.Authors)
				if len(f.Tags)+len(f.Authors) == 0 {
					t.Errorf("asked for %v", f)
				}
			}
		})
		slices.Sort(tags)
		return slices.Compact(tags), live, authors
	}
	for _, r := range []*foreign{writes, owners, index} {
		eventually(t, "the relay was visited", func() bool {
			s := state(t, b, proto.VisitKey(r.Name))
			return s.Further && s.Failures == 0 && time.Until(s.NextDaily) > 23*time.Hour
		})
		r.look(func() {
			if len(r.open) != 0 || r.dials != 1 {
				t.Errorf("%d connections stand, %d were made", len(r.open), r.dials)
			}
		})
	}
	eventually(t, "the past comes", func() bool {
		return judge.has("startup sync.historic comment", "startup sync.historic list")
	})
	if tags, live, authors := asked(index); len(tags) != 0 || live || authors == 0 {
		t.Errorf("an index was asked for %v, of %d authors, live: %v", tags, authors, live)
	}
	if tags, live, _ := asked(writes); !slices.Equal(tags, []string{"E", "e", "q"}) || live {
		t.Errorf("a write relay was asked for %v, live: %v", tags, live)
	}
	if tags, live, _ := asked(owners); !slices.Contains(tags, "a") || live {
		t.Errorf("an owner's relay was asked for %v, live: %v", tags, live)
	}
	eventually(t, "a connection to the read relay stands", func() bool { _, live, _ := asked(reads); return live })
	if tags, _, _ := asked(reads); !slices.Equal(tags, []string{"E", "e", "q"}) {
		t.Errorf("a read relay was asked for %v", tags)
	}
	reads.publish(event(nostr.KindComment, "an answer", 0, nostr.Tag{"E", issue.ID}))
	eventually(t, "an answer comes live", func() bool { return judge.has("live sync.live an answer") })
}

// TestNewPeopleAreAskedForSoon, and the rest a day later.
func TestNewPeopleAreAskedForSoon(t *testing.T) {
	t.Parallel()
	all := NewTargets(nil, &world{}, 0, 0, nil, quiet)
	target := all.Of(proto.VisitKey("r.example"))
	all.wanted[target.key()], target.read = target, true
	all.relays["r.example"] = proto.Target{URL: "wss://r.example", Further: true, Past: true}
	v := &dailyVisits{Env: &Env{Domain: "git.example.com"}, target: target}
	wants := func(person string, seq uint64) {
		all.mu.Lock()
		defer all.mu.Unlock()
		target.take(proto.PersonRef(person), repo{proto.Wanted{Level: proto.LevelPerson, Lists: true}, seq})
	}
	now := time.Now()
	wants("aa", 1)
	due, _ := v.due(now)
	if len(due.Items.People) != 1 || due.Mark.Target != 1 {
		t.Fatalf("at first %+v is due", due)
	}
	v.state.Confirmed, v.state.NextDaily, v.state.NextAttempt = 1, now.Add(visitEvery), now.Add(visitPause)
	wants("bb", 2)
	if due, wait := v.due(now); !due.Items.Empty() || wait != visitPause {
		t.Errorf("at once %+v is due, else in %v", due, wait)
	}
	if due, _ := v.due(now.Add(visitPause)); !slices.Equal(due.Items.People, []string{"bb"}) {
		t.Errorf("a minute later %+v is due", due)
	}
	v.state.Confirmed = 2
	if due, wait := v.due(now.Add(visitPause)); !due.Items.Empty() || wait != visitEvery-visitPause {
		t.Errorf("then %+v is due, else in %v", due, wait)
	}
	if due, _ := v.due(now.Add(visitEvery)); len(due.Items.People) != 2 {
		t.Errorf("a day later %+v is due", due)
	}
}

// TestVisitsThatFail are made again after 5 min, doubling to an hour. A private service is left alone,
// and so is a relay that is banned, until the ban ends.
func TestVisitsThatFail(t *testing.T) {
	t.Parallel()
	b, dials, stated := openBus(t), 0, wire.Stated{}
	banned, err := bans.Open(t.Context(), b.JS, config.Policy{}, quiet)
	must(t, err)
	while(t, banned.Run)
	env := &Env{
		Rules: Rules{Health: health.Rules{Base: time.Minute}}, JS: b.JS, Bans: banned, Log: quiet, visits: semaphore.NewWeighted(1),
		Document: func(context.Context, string) (wire.Stated, error) { return stated, nil },
		Dial:     func(context.Context, string) (Connection, error) { dials++; return nil, errGone },
	}
	v := &dailyVisits{Env: env, keeper: open(t, b), state: proto.RelayState{URL: relayURL}, log: quiet}
	visit := func(ctx context.Context) { v.visit(ctx, session.Wanted{}) }
	for _, minutes := range []time.Duration{5, 10, 20, 40, 60, 60} {
		before := time.Now()
		visit(t.Context())
		wait := v.state.NextAttempt.Sub(before).Truncate(time.Minute)
		if wait != minutes*time.Minute || v.state.LastError == "" || !v.state.LastConnected.IsZero() {
			t.Errorf("after failure %d the relay is left alone for %v (%q)", v.state.Failures, wait, v.state.LastError)
		}
	}
	stated.Private, dials = true, 0
	if visit(t.Context()); dials != 0 || v.state.LastError != errPrivate.Error() {
		t.Errorf("%d connections to a private service: %q", dials, v.state.LastError)
	}
	stated.Private = false
	subject, err := bans.OfRelay(relayURL)
	must(t, err, bans.Put(t.Context(), b.JS, subject, proto.Ban{}))
	eventually(t, "the relay is banned", func() bool { return banned.Find(subject) != nil })
	ended := make(chan bool)
	go func() {
		env.unlessBannedDo(t.Context(), relayURL, quiet, visit)
		close(ended)
	}()
	must(t, bans.Lift(t.Context(), b.JS, subject, "test"))
	if <-ended; dials != 0 {
		t.Errorf("%d connections to a banned relay", dials)
	}
	if env.unlessBannedDo(t.Context(), relayURL, quiet, visit); dials != 1 {
		t.Errorf("%d connections when the ban has ended", dials)
	}
}

// TestVisitThatIsRefused: what a relay refuses for good rests until the next visit, and this one ends:
// others wait for their turn.
func TestVisitThatIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newSimulation(t, odd{noNIP77: true, refuses: func([]nostr.Filter) string { return "auth-required: who are you?" }}, nil)
		ctx, end := context.WithCancel(t.Context())
		in := intake.New(intake.Options{Offerer: &simulatedIngest{m, nil}})
		var running sync.WaitGroup
		running.Go(func() { in.Run(ctx) })
		env := &Env{
			Rules: m.rules, Metrics: NewMetrics(prometheus.NewRegistry()), Log: quiet, Intake: in,
			Document: func(context.Context, string) (wire.Stated, error) { return wire.Stated{}, errGone },
			Dial:     func(context.Context, string) (Connection, error) { return m.dial(), nil },
			Sign:     func(*nostr.Event) error { return errGone },
		}
		v, began := &dailyVisits{Env: env, state: proto.RelayState{URL: relayURL}, log: quiet}, time.Now()
		err := v.ask(ctx, session.Wanted{Items: session.Set{Full: []string{x}}, Mark: session.MarkAt(1, 1)})
		if took := time.Since(began); err != nil || took > 5*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
		end()
		running.Wait()
	})
}
