package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

const (
	// rereadEvery is how often targets are worked out though nothing came, because announcements
	// expire (NIP-40).
	rereadEvery = time.Hour
	// attempts is how often targets that met another replica's are worked out again before they are
	// left to the next window.
	attempts = 5
	// publishTimeout bounds one publication with all that it waits for.
	publishTimeout = 30 * time.Second
	// retryPause is the pause before a publication that failed is tried again.
	retryPause = time.Second
	// mostMisses is how many publications in a row may fail before the replica says that it is not
	// ready.
	mostMisses = 2
)

// Run runs one replica until ctx ends. Any number may run; each works out the same targets and the
// first to publish a change wins.
func Run(ctx context.Context, n *node.Node) error {
	bootstrap, err := n.Settings.Bootstrap()
	if err != nil {
		return err
	}
	rules, err := n.Settings.Hosting()
	if err != nil {
		return err
	}
	plus, err := n.Settings.Plus()
	if err != nil {
		return err
	}
	d := newDiscovery(n.Bus, rules, bootstrap, n.Settings.IgnoreDeletions, n.Metrics, n.Log)
	d.plus, d.people = plus, newPeople(plus)
	if !plus.Off {
		kinds := append(slices.Clone(threadKinds), nostr.KindRelayList)
		heard := query.SubscribeAccepted(n.Bus.JS, n.Accepted, kinds, func(records []eventdb.Record) {
			if d.people.heard(records) {
				d.signal()
			}
		})
		d.followPeople = func(ctx context.Context) error { return d.people.follow(ctx, n.Accepted, heard, d.signal) }
	}
	d.all.banned = func(ref nostr.RepoRef, id string) bool {
		return n.Bans.Repository(ref) != nil || n.Bans.Find(bans.Subject{Event: id}) != nil
	}
	n.Bans.OnChange(func(bans.Subject) { d.signal() })
	d.window = time.Duration(n.Settings.BatchWindowMillis) * time.Millisecond
	n.Projection("discovery_held", proto.KVStream(proto.BucketHeld), d.held.Seq)
	n.Projection("discovery_targets", proto.StreamTargets, d.publisher.stream.Seq)
	n.Ready.Add("discovery", d.ready)
	return d.run(ctx)
}

type discovery struct {
	bus       *bus.Bus
	log       *slog.Logger
	bootstrap []nostr.RelayURL
	domain    string
	plus      config.Plus
	people    *people
	limits    limits
	// followPeople keeps people in step; nil: their lists do not count.
	followPeople func(context.Context) error
	window       time.Duration
	timeout      time.Duration
	publisher    *publisher
	metrics      *metrics
	changed      chan struct{} // of capacity 1: a target may have changed

	up     atomic.Bool  // what there was at the start is published
	misses atomic.Int32 // publications that have failed since the last one that did not

	accepted bus.Followers // announcements and deletion requests
	held     *bus.Follower
	over     bool // more relays are listed than the limits allow, and that was logged

	mu  sync.Mutex
	all *announcements
}

// newDiscovery makes a replica. keepAll: requests do not touch what is accepted.
func newDiscovery(b *bus.Bus, rules config.Rules, bootstrap []nostr.RelayURL, keepAll bool, reg prometheus.Registerer,
	log *slog.Logger) *discovery {
	d := &discovery{
		bus: b, log: log, domain: rules.Domain(), plus: config.Plus{Off: true}, people: newPeople(config.Plus{}),
		limits: defaultLimits, timeout: publishTimeout, publisher: newPublisher(b,
			log), metrics: newMetrics(reg),
		changed: make(chan struct{}, 1), all: newAnnouncements(rules),
	}
	for _, url := range slices.Concat(bootstrap, rules.Peers()) {
		if !url.OnDomain(rules.Domain()) {
			d.bootstrap = append(d.bootstrap, url)
		}
	}
	announcements := bus.Reading{Stream: proto.StreamEvents, Filter: proto.AnyEventOf(nostr.KindAnnouncement)}
	d.accepted = bus.Followers{bus.NewFollower(b.JS, announcements, log, bus.Each(d.takeAccepted))}
	if !keepAll {
		for _, kind := range []int{nostr.KindDeletion, nostr.KindVanish} {
			requests := bus.Reading{Stream: proto.StreamEvents, Filter: proto.AnyEventOf(kind), Wait: d.accepted[0].Wait}
			d.accepted = append(d.accepted, bus.NewFollower(b.JS, requests, log, bus.Each(d.takeAccepted)))
		}
	}
	d.held = bus.NewFollower(b.JS, bus.Reading{Stream: proto.KVStream(proto.BucketHeld)}, log, bus.Each(d.takeHeld))
	return d
}

// run follows what targets are made of, and publishes changes.
func (d *discovery) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.follow(ctx) })
	group.Go(func() error { return d.publishChanges(ctx) })
	return group.Wait()
}

func (d *discovery) follow(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.publisher.stream.Run(ctx) })
	group.Go(func() error { return d.held.Run(ctx) })
	group.Go(func() error { return d.accepted.Run(ctx) })
	if d.followPeople != nil {
		group.Go(func() error { return d.followPeople(ctx) })
	}
	return group.Wait()
}

// ready reports what keeps this replica from publishing targets.
func (d *discovery) ready() error {
	if n := d.misses.Load(); n >= mostMisses {
		return fmt.Errorf("targets could not be published %d times in a row", n)
	}
	if !d.up.Load() {
		return errors.New("reading announcements and targets")
	}
	return nil
}

func (d *discovery) signal() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// takeAccepted reads a message of the log.
func (d *discovery) takeAccepted(m bus.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id := m.Header.Get(proto.HeaderRemoved); id != "" {
		if d.all.remove(id) {
			d.signal()
		}
		return
	}
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(m.Data); err != nil {
		d.log.Error("an event of the log cannot be read", "subject", m.Subject, "error", err)
		return
	}
	if d.up.Load() && ev.Kind == nostr.KindVanish { // else what is counted has it
		d.people.forget(ev.PubKey)
		d.signal()
	}
	if d.all.accept(ev) {
		d.signal()
	}
}

// takeHeld reads a message of purgatory.
func (d *discovery) takeHeld(m bus.Message) {
	change, ok, err := held.ReadChange(m)
	if err != nil {
		d.log.Error("a held event cannot be read", "key", change.Key, "error", err)
	}
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all.hold(change.Key, change.Entry) {
		d.signal()
	}
}

// publishChanges publishes what there is at the start, and then once for every window that a change
// has opened: later changes do not move its end.
func (d *discovery) publishChanges(ctx context.Context) error {
	for {
		limited, cancel := context.WithTimeout(ctx, d.timeout)
		sent, err := d.publish(limited)
		cancel()
		pause := d.window
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if sent == 0 { // or much is published, in several steps
				d.misses.Add(1)
			}
			d.log.Warn("targets could not be published, trying again", "error", err)
			d.signal()
			pause = max(pause, retryPause)
		default:
			d.misses.Store(0)
			d.up.Store(true)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.changed:
		case <-time.After(rereadEvery):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		select { // what came since the window opened is part of it
		case <-d.changed:
		default:
		}
	}
}

// publish brings the targets in line with what is announced, and returns how many messages that
// took. What another replica published meanwhile is looked at first, because it may know more.
func (d *discovery) publish(ctx context.Context) (all int, err error) {
	if !d.up.Load() {
		if err := d.publisher.stream.CatchUp(ctx); err != nil {
			return 0, err
		}
	}
	for range attempts {
		asOf := d.publisher.stream.Seq()
		wants, counts, err := d.want(ctx)
		if err != nil {
			return all, err
		}
		wanted, refused := targets(wants, d.bootstrap, d.limits)
		if !d.plus.Off {
			d.mu.Lock()
			roles := d.all.roles(time.Now())
			d.mu.Unlock()
			ours := func(url nostr.RelayURL) bool { return url.OnDomain(d.domain) }
			refused += further(wanted, d.people.snapshot(), roles, d.plus, d.bootstrap, ours)
		}
		d.tellRefused(refused + counts.cut)
		sent, err := d.publisher.publish(ctx, wanted, asOf)
		if all += sent; sent > 0 {
			d.log.Info("targets published", "relays", len(wanted), "changes", sent, "repositories", counts.served, "held",
				counts.held)
		}
		if !errors.Is(err, errOvertaken) {
			d.metrics.repositories.Set(float64(counts.served))
			d.metrics.targets.Set(float64(len(wanted)))
			return all, err
		}
	}
	return all, fmt.Errorf("%w, %d times", errOvertaken, attempts)
}

// counts is how many repositories there are, and how many relays single announcements list beyond
// what one may ask for.
type counts struct{ served, held, cut int }

// want works out what is wanted by all that the log and purgatory have by now. What is released
// goes to the log first and from purgatory then, so the log is read last, while what is known of
// purgatory does not change: no repository is missing in between.
func (d *discovery) want(ctx context.Context) ([]*want, counts, error) {
	if err := d.held.CatchUp(ctx); err != nil {
		return nil, counts{}, err
	}
	d.mu.Lock()
	waiting := maps.Clone(d.all.held)
	d.mu.Unlock()
	for _, events := range d.accepted {
		if err := events.CatchUp(ctx); err != nil {
			return nil, counts{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := *d.all
	now.held = waiting
	n := counts{served: len(now.byID), held: len(waiting)}
	for _, all := range []map[string]*announcement{now.byID, waiting} {
		for _, a := range all {
			n.cut += a.cut
		}
	}
	return now.wants(time.Now()), n, nil
}

// tellRefused logs once when more relays are listed than the limits allow.
func (d *discovery) tellRefused(refused int) {
	d.metrics.refused.Set(float64(refused))
	if refused > 0 && !d.over {
		d.log.Warn("announcements list more relays than are asked",
			"most_of_served", d.limits.served, "most_of_held_alone", d.limits.held, "most_of_one", maxServedRelays,
			"most_of_one_held", maxHeldRelays, "not_asked", refused)
	}
	d.over = refused > 0
}

type metrics struct{ repositories, targets, refused prometheus.Gauge }

func newMetrics(reg prometheus.Registerer) *metrics {
	with := promauto.With(reg)
	return &metrics{
		repositories: with.NewGauge(prometheus.GaugeOpts{Name: "ngit_repositories_total",
			Help: "Repositories whose announcement is served."}),
		targets: with.NewGauge(prometheus.GaugeOpts{Name: "tendril_discovery_targets",
			Help: "Relays that should be asked for something."}),
		refused: with.NewGauge(prometheus.GaugeOpts{Name: "tendril_discovery_refused_relays",
			Help: "Relays that are listed and not asked because the limits of targets are reached."}),
	}
}
