package purgatory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/held"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/purgatory/fetch"
	"tendril.dev/services/purgatory/hunt"
	"tendril.dev/services/purgatory/release"
	"tendril.dev/services/purgatory/repository"
	"tendril.dev/services/purgatory/workqueue"
)

// worker is one replica: it puts the parts together, runs them, and holds shards.
type worker struct {
	env
	sender    *candidates.Sender
	guard     *netguard.Guard
	inside    *netguard.Guard
	hearing   query.Subscription
	knowledge *knowledge
	notices   *notices
	schedule  *schedule
	fetcher   *fetcher
	survey    *survey
	answers   *answers
	pushes    authority
	chores    *workqueue.Queue[repository.Place] // of housekeeping
	questions *gitquery.Server
}

// Bounds of what git work takes.
const (
	// spoolBytes is the disk for requests and packs on their way, unless two of the largest pushes
	// take more.
	spoolBytes   = 16 << 30
	fetchTimeout = time.Hour       // for all requests of a fetch
	fetchSilence = 2 * time.Minute // without a byte of a server
	fetchMinRate = 1 << 10         // bytes a second
	// clientStall is how long a client may take for 32 KiB of its request or of its answer.
	clientStall = 30 * time.Second
)

// newWorker is a worker that reads nothing and is asked for nothing yet.
func newWorker(ctx context.Context, n *node.Node, c constants) (*worker, error) {
	s := n.Settings
	hosted, err := s.Hosting()
	if err != nil {
		return nil, err
	}
	belongs, err := takeFolder(ctx, n, hosted.Domain())
	if err != nil {
		return nil, err
	}
	ours := newShards()
	store, err := repository.NewStore(repository.Options{
		Root: s.GitDataPath, Git: c.Git, Processes: s.GitProcesses,
		SpoolBytes: max(spoolBytes, 2*s.MaxPushBytes), SpoolShare: max(spoolBytes/4, s.MaxPushBytes),
		Enter: ours.Enter, Log: n.Log,
	})
	if err != nil {
		return nil, err
	}
	sender, err := candidates.New(n.Bus.Conn, n.Log)
	if err != nil {
		return nil, err
	}
	budget, err := openBudget(ctx, n)
	if err != nil {
		return nil, err
	}
	w := &worker{
		env: env{n, n.Log, store, ours, c}, sender: sender, guard: netguard.New(netguard.Options{AllowPrivate: s.AllowPrivate}),
		inside: netguard.New(netguard.Options{AllowPrivate: true}),
	}
	w.connect(budget, belongs, repository.Rules{Rules: hosted, Store: store})
	return w, nil
}

// connect makes the parts, in the order in which they know each other.
func (w *worker) connect(budget *budget, belongs repository.Belongs, rules repository.Rules) {
	n, s, e := w.node, w.node.Settings, w.env
	statuses := &sync.Map{}
	w.notices = &notices{env: e}
	w.knowledge = &knowledge{env: e, events: n.Accepted, rules: rules}
	hosting := &hosting{env: e, knowledge: w.knowledge}
	w.schedule = &schedule{env: e}
	releaser := &release.Releaser{
		Store: w.store, Offerer: w.sender, Events: forRelease{w.knowledge, hosting, budget, w.schedule},
		Hold: s.HoldDuration, Later: w.schedule.later, Log: n.Log,
	}
	follower := &follower{e, w.knowledge, w.schedule, releaser}
	retention := &retention{
		env: e, notices: w.notices, knowledge: w.knowledge, hosting: hosting, schedule: w.schedule, releaser: releaser,
		sender: w.sender, belongs: belongs, statuses: statuses,
	}
	w.chores = newHousekeeping(e, w.knowledge).chores
	reconciler := &reconciler{
		env: e, notices: w.notices, knowledge: w.knowledge, schedule: w.schedule, retention: retention,
		expiry:   &expiry{e, w.notices, w.knowledge, w.schedule, w.sender},
		releaser: releaser, chores: w.chores, statuses: statuses, turn: make(chan struct{}, 1),
	}
	w.schedule.queue = newQueue(reconcilers, e.constants.BackOff, maxReconcileBackOff, reconciler.tryReconcile)
	w.fetcher = &fetcher{
		env: e, notices: w.notices, knowledge: w.knowledge, hosting: hosting, releaser: releaser, budget: budget,
		guard: w.guard, inside: w.inside,
		limits: fetch.Limits{
			Timeout: fetchTimeout, Silence: fetchSilence, MaxBytes: s.MaxFetchBytes, MinRate: fetchMinRate,
			Misses: fetch.NewMisses(),
			Agent:  fmt.Sprintf("git/%s (tendril/%s)", w.store.GitVersion(), strings.ReplaceAll(obs.Version(), " ", "-")),
		},
	}
	w.survey = &survey{env: e, knowledge: w.knowledge, schedule: w.schedule, releaser: releaser,
		arrivals: make(chan int, proto.Shards), statuses: statuses}
	w.answers = &answers{env: e, knowledge: w.knowledge, hosting: hosting, schedule: w.schedule, retention: retention,
		statuses: statuses}
	w.questions = gitquery.NewServer(n.Bus.Conn, n.Log, w.answers.newAnswers())
	w.pushes = authority{
		env: e, notices: w.notices, knowledge: w.knowledge, hosting: hosting, schedule: w.schedule, reconciler: reconciler,
		releaser: releaser, sender: w.sender, budget: budget,
	}
	kinds := []int{nostr.KindAnnouncement, nostr.KindPR, nostr.KindPRUpdate, nostr.KindDeletion,
		nostr.KindVanish}
	w.hearing = query.SubscribeAccepted(n.Bus.JS, n.Accepted, kinds, follower.heard)
	w.knowledge.holdings = held.NewSet(n.Bus.JS, n.Log, follower.changed)
	n.Bans.OnChange(follower.heardBan) // last: it may be called at once, and uses all of the above
}

// takeFolder makes sure that the git folder belongs to this log and this domain.
func takeFolder(ctx context.Context, n *node.Node, domain string) (repository.Belongs, error) {
	log := ""
	if n.Settings.DatabaseBackend != "memory" || n.Settings.NATSURL != "" {
		stream, err := n.Bus.JS.Stream(ctx, proto.StreamEvents)
		if err != nil {
			return repository.Belongs{}, fmt.Errorf("look at the log: %w", err)
		}
		log = stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano)
	}
	belongs, err := repository.TakeFolder(n.Settings.GitDataPath, log, domain, n.Settings.ForgetLog)
	if err == nil {
		belongs, err = repository.TakePrivacy(n.Settings.GitDataPath, belongs, n.Settings.PrivateMode, n.Bans.MadePublic())
	}
	return belongs, err
}

// Run runs one worker until ctx ends; its shards are handed over then.
func Run(ctx context.Context, n *node.Node) error { return runBy(ctx, n, defaultConstants) }

func runBy(ctx context.Context, n *node.Node, c constants) error {
	w, err := newWorker(ctx, n, c)
	if err != nil {
		return err
	}
	defer w.guard.CloseIdleConnections()
	defer w.inside.CloseIdleConnections()
	server, err := w.listen()
	if err != nil {
		return err
	}
	defer server.Close()
	member, err := claim.Join(ctx, n.Bus, claim.Options{
		Group: proto.GroupShards, Worker: n.Worker, Address: server.address, Log: n.Log,
	})
	if err != nil {
		return err
	}
	// Not before the last request has ended: without its record this worker would be taken for
	// dead.
	defer member.Leave()
	directory := member.Directory()
	w.fetcher.directory = directory
	if w.schedule.hunter, err = w.newHunter(directory); err != nil {
		return err
	}
	w.notices.metrics = newMetrics(n.Metrics, w)
	n.Metrics.MustRegister(w.store.Usage())
	server.serve(w, directory)
	var shared atomic.Bool
	n.Ready.Add("purgatory", func() error {
		err := cmp.Or(ctx.Err(), w.knowledge.holdings.CaughtUp(), member.Alive())
		switch {
		case err != nil:
		case shared.Load() || w.allServed(directory):
			shared.Store(true) // later a shard may be without a worker for a while; that is no news of this one
		default:
			err = errors.New("the workers have not shared out the repositories yet")
		}
		return err
	})
	n.Ready.Note("git folder", func() string { // clones go on
		if err := w.store.Writable(); err != nil {
			return err.Error()
		}
		return ""
	})
	n.Count(w.answers.countRepos)
	n.Projection("purgatory_held", proto.KVStream(proto.BucketHeld), w.knowledge.holdings.Seq)
	// Verdicts of ingest and what is held outlive the rest, so that what is being pushed or released
	// when the worker stops ends well.
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	support, lasting := errgroup.WithContext(lasting)
	support.Go(func() error { return w.sender.Run(lasting) })
	support.Go(func() error { return w.knowledge.holdings.Run(lasting) })
	working, stop := context.WithCancel(ctx)
	defer context.AfterFunc(lasting, stop)()
	asked := make(chan time.Time, 1)
	defer context.AfterFunc(ctx, func() { asked <- time.Now() })()
	err = w.work(working, member)
	// All shards are with others now. What is under way, clones and pushes that are being read in,
	// ends here; pushes are passed on then.
	until := time.Now()
	if ctx.Err() != nil {
		until = <-asked
	}
	err = errors.Join(err, server.Shutdown(until.Add(n.StopWait())))
	end()
	return errors.Join(err, support.Wait())
}

// allServed reports whether every repository has a worker at this moment. What this one has claimed
// counts once it is at work there.
func (w *worker) allServed(directory *claim.Directory) bool {
	for shard := range proto.Shards {
		holder, held := directory.Holder(proto.ShardName(shard))
		if !held || holder.Name == w.node.Worker && w.shards.of(shard) == notHeld {
			return false
		}
	}
	return true
}

func (w *worker) newHunter(directory *claim.Directory) (*hunt.Hunter, error) {
	s := w.node.Settings
	limits := hunt.Limits{AtOnce: w.constants.HuntsAtOnce, Default: hunt.Limit{Concurrent: s.DomainConcurrent,
		Rate: s.DomainRateLimit}, Hosts: map[string]hunt.Limit{}}
	limits.Hosts[hunt.HostOf("https://"+s.Domain)] = hunt.Limit{Concurrent: s.DomainConcurrent,
		Rate: math.MaxInt} // our own forks
	overrides, err := s.ServerLimits()
	for _, o := range overrides {
		limits.Hosts[hunt.HostOf("https://"+o.Domain)] = hunt.Limit{Concurrent: o.Concurrent, Rate: o.Rate}
	}
	share := func() (place, workers int) {
		names := slices.Sorted(maps.Keys(directory.Workers()))
		place, _ = slices.BinarySearch(names, w.node.Worker)
		return place, len(names)
	}
	return hunt.New(hunt.Options{Base: w.constants.BackOff, Max: w.constants.MostBackOff, Limits: limits, Share: share,
		Fetch: w.fetcher.fetch, Look: w.schedule.lookAt, Log: w.log}), err
}

// work runs the parts of the worker until ctx ends and every push that was under way is released.
func (w *worker) work(ctx context.Context, member *claim.Member) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{w.hearing.Run, w.schedule.hunter.Run, w.survey.Run,
		w.schedule.queue.keys.Run, w.chores.Run} {
		group.Go(func() error { return run(ctx) })
	}
	group.Go(func() error {
		if err := w.knowledge.holdings.CatchUp(ctx); err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return err
		}
		wanted := make(chan []string, 1)
		var names []string
		for n := range proto.Shards {
			names = append(names, proto.ShardName(n))
		}
		wanted <- names
		return member.Work(ctx, wanted, w.hold)
	})
	return group.Wait()
}

// hold keeps one shard until ctx ends, and lets go of it when nothing writes in it any more.
func (w *worker) hold(ctx context.Context, held claim.Held) error {
	n, err := strconv.Atoi(held.Key)
	if err != nil {
		return err
	}
	ours := func(identifier string) bool { return proto.ShardOf(identifier) == n }
	// Changed hears of what comes from Open on. What came before is in the second round.
	for opened := false; ; opened = true {
		for _, identifier := range w.knowledge.holdings.Identifiers() {
			if !ours(identifier) {
				continue
			}
			w.schedule.hunter.Add(identifier, w.constants.SyncDelay) // before anything that is overdue can expire
			w.schedule.queue.addIdentifier(identifier, time.Now())
			for _, entry := range w.knowledge.holdings.OfIdentifier(identifier) {
				w.schedule.enqueueFor(entry)
			}
		}
		if opened {
			break
		}
		w.shards.Open(n, held.Lease)
	}
	unasked, err := w.questions.Serve(ctx, n)
	if err != nil {
		return err
	}
	select {
	case w.survey.arrivals <- n:
	case <-ctx.Done():
	}
	<-ctx.Done()
	unasked() // who asks is told that no worker holds the shard, and asks again
	if !w.shards.Close(n) {
		w.log.Error("work in a shard does not end, though its lease has ended; the shard moves without it", "shard", held.Key)
	}
	w.schedule.hunter.Drop(ours)
	w.schedule.queue.drop(ours)
	here := func(at repository.Place) bool { return ours(at.Identifier) }
	w.schedule.forget(here)
	w.pushes.releaser.Forget(here)
	w.chores.Drop(here)
	for at := range w.survey.statuses.Range {
		if here(at.(repository.Place)) {
			w.survey.statuses.Delete(at)
		}
	}
	return nil
}

func (w *schedule) later(at repository.Place, when time.Time) {
	w.queue.addRepository(at, when, groupAndAcceptedPRs)
}

// lookAt asks for a look at what is hunted for: an owner's repository, or all of an identifier.
func (w *schedule) lookAt(identifier, owner string, at time.Time) {
	if owner == "" {
		w.queue.addIdentifier(identifier, at)
		return
	}
	w.queue.addRepository(placeOf(owner, identifier), at, maintainerGroup)
}
