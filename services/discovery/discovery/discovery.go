// Package discovery is the service that decides which relay should be asked for what: it asks for
// accepted announcements and the ids of root events, hears of those that come, reads held
// announcements from purgatory, and publishes a target for every relay that they list.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nbd-wtf/go-nostr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/hosting"
	"tendril.dev/lib/nip34"
	"tendril.dev/lib/node"
	"tendril.dev/lib/progress"
	"tendril.dev/lib/query"
	"tendril.dev/lib/target"
	"tendril.dev/proto"
	"tendril.dev/services/discovery/publish"
	"tendril.dev/services/discovery/repos"
	"tendril.dev/services/discovery/wanted"
	"tendril.dev/services/discovery/window"
)

// rereadEvery is how often the book is made anew, for what changes without an event: announcements
// that expire (NIP-40).
const rereadEvery = time.Hour

// attempts is how often targets that met another replica's are worked out anew before they are left
// to the next window.
const attempts = 5

const (
	// readTimeout bounds how long a publication waits until all is read that it is to be made of.
	readTimeout = 10 * time.Second
	// retryRead is the pause before it is tried again to read what was there at the start.
	retryRead = time.Second
)

// Run runs one replica until ctx ends. Any number may run; each works out the same targets and the
// first to publish a change wins.
func Run(ctx context.Context, n *node.Node) error {
	bootstrap, err := bootstrapRelays(n.Settings.BootstrapRelays)
	if err != nil {
		return err
	}
	rules, err := hosting.New(n.Settings)
	if err != nil {
		return err
	}
	d := &discovery{
		events:    n.Accepted,
		log:       n.Log,
		book:      repos.NewBook(rules, bootstrap, repos.Limits{Served: n.Settings.MaxTargets, Held: n.Settings.MaxHeldTargets}),
		limit:     n.Settings.MaxTargets,
		heldLimit: n.Settings.MaxHeldTargets,
		keepAll:   n.Settings.IgnoreDeletions,
		news:      make(chan struct{}, 1),
		changed:   make(chan struct{}, 1),
		metrics:   newMetrics(n.Metrics),
		stale:     true,
	}
	d.publisher = publish.New(n.Bus, d.wholeIDs, n.Log)
	n.Projection("discovery_held", proto.KVStream(proto.BucketHeld), d.heldRead.Seq)
	n.Projection("discovery_targets", proto.StreamTargets, d.publisher.Seq)
	n.Ready.Add("discovery", d.ready)
	// It hears before the first look, so that nothing falls in between.
	d.hearing = n.Accepted.Hear(heardKinds(d.keepAll), d.hear)

	d.heldHead = n.Bus.Head(proto.KVStream(proto.BucketHeld), d.heldRead.WaitFor)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.hearing.Run(ctx) })
	group.Go(func() error { return d.publisher.Follow(ctx) })
	group.Go(func() error { return d.followHeld(ctx, n.Bus.JS) })
	group.Go(func() error {
		if err := d.start(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		length := time.Duration(n.Settings.BatchWindowMillis) * time.Millisecond
		return window.Run(ctx, length, d.changed, d.tryPublish)
	})
	group.Go(func() error { return d.foldAsItComes(ctx) })
	group.Go(func() error { return d.rereadNowAndThen(ctx) })
	return group.Wait()
}

// events is what discovery asks about accepted events.
type events interface {
	Seq() uint64
	Has(ctx context.Context, ids [][32]byte) ([]bool, error)
	Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error]
	IDs(ctx context.Context, filters ...nostr.Filter) iter.Seq2[query.Found, error]
}

type discovery struct {
	events    events
	hearing   query.Hearing
	log       *slog.Logger
	publisher *publish.Publisher
	changed   chan struct{}
	metrics   *metrics
	heldRead  progress.Progress
	heldHead  *bus.Head
	up        atomic.Bool // what there was at the start is published
	keepAll   bool        // deletion requests do not touch what is accepted
	limit     int         // of relays that served announcements list
	heldLimit int         // of relays that only held announcements list

	mu    sync.Mutex
	book  *repos.Book
	stale bool   // the book must be made anew
	at    uint64 // sequence of the log when that began the last time
	over  bool   // more relays are listed than the limits allow, and that was told

	// What is heard is only noted, because who tells it must not wait: mu may be held for as long
	// as a book takes to be made.
	news       chan struct{} // of capacity 1: something was heard
	heardMu    sync.Mutex
	heard      []eventdb.Record
	heardBytes int
	missed     bool // more than maxHeard or maxHeardBytes: the book must be made anew
}

// maxHeard and maxHeardBytes bound the events that were heard of and are not in the book yet.
const (
	maxHeard      = 100_000
	maxHeardBytes = 32 << 20
)

// start waits, as long as it takes, until the log, purgatory and the targets were read as they
// stood, and publishes what that makes.
func (d *discovery) start(ctx context.Context) error {
	for _, read := range []func(context.Context) error{d.hearing.CatchUp, d.heldHead.Read, d.publisher.CatchUp} {
		for err := read(ctx); err != nil; err = read(ctx) {
			if ctx.Err() != nil {
				return nil
			}
			d.log.Warn("the state at the start could not be read; trying again", "error", err)
			select {
			case <-time.After(retryRead):
			case <-ctx.Done():
				return nil
			}
		}
	}
	return d.tryPublish(ctx)
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (d *discovery) ready() error {
	if !d.up.Load() {
		return errors.New("reading repositories and targets")
	}
	return nil
}

func (d *discovery) signal() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// followHeld keeps the book's held announcements.
func (d *discovery) followHeld(ctx context.Context, js jetstream.JetStream) error {
	return bus.Follow(ctx, js, bus.Reading{Stream: proto.KVStream(proto.BucketHeld)}, d.log, func(m bus.Message) {
		c, ok, err := held.ReadChange(m)
		if err != nil {
			d.log.Error("a held event cannot be read", "error", err)
		}
		if ok {
			d.hold(c)
		}
		d.heldRead.Advance(m.Seq)
	})
}

func (d *discovery) hold(c held.Change) {
	var h *proto.Held
	if c.Entry != nil {
		h = &c.Entry.Held
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.book.Hold(c.Key, h) {
		d.signal()
	}
}

func (d *discovery) rereadNowAndThen(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rereadEvery):
			d.mu.Lock()
			d.stale = true
			d.mu.Unlock()
			d.signal()
		}
	}
}

// tryPublish publishes, and has another try in the next window if the bus does not take it.
func (d *discovery) tryPublish(ctx context.Context) error {
	err := d.publish(ctx)
	if errors.Is(err, errPublish) {
		d.log.Warn("targets could not be published, trying again", "error", err)
		d.signal()
		return nil
	}
	return err
}

var errPublish = errors.New("publish targets")

// publish brings the targets in line with the book. What another replica published meanwhile is
// looked at first, because it may know more.
func (d *discovery) publish(ctx context.Context) error {
	for range attempts {
		asOf := d.publisher.Seq()
		w, err := d.want(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		d.publisher.Heard(w.heard)
		sent, err := d.publisher.Publish(ctx, w.targets, asOf)
		d.drop(d.publisher.TakeUnaccepted())
		if sent > 0 {
			d.log.Info("targets published", "relays", len(w.targets), "changes", sent, "repositories", w.accepted, "held", w.held, "roots", w.roots)
		}
		switch {
		case err == nil:
			d.metrics.repositories.Set(float64(w.accepted))
			d.metrics.targets.Set(float64(len(w.targets)))
			d.up.Store(true)
			return nil
		case !errors.Is(err, publish.ErrOvertaken):
			return ignoreEnd(ctx, fmt.Errorf("%w: %w", errPublish, err))
		}
	}
	return fmt.Errorf("%w: %w, %d times", errPublish, publish.ErrOvertaken, attempts)
}

// look is what the book says.
type look struct {
	targets               map[string]wanted.Target // by identity
	heard                 []target.ID              // root events that came or went since the last look
	accepted, held, roots int
}

// want works the targets out from all that the log and purgatory have by now. What is released goes
// to the log first and from purgatory then, so the log is read last, and the book's purgatory
// stands still meanwhile: no repository is missing in between.
func (d *discovery) want(ctx context.Context) (w look, err error) {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := d.heldHead.Read(reading); err != nil {
		return w, fmt.Errorf("%w: read held events: %w", errPublish, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.hearing.CatchUp(reading); err != nil {
		return w, fmt.Errorf("%w: read the log: %w", errPublish, err)
	}
	if _, err := d.fold(ctx); err != nil {
		return w, err
	}
	if err := d.reread(ctx); err != nil {
		return w, err
	}
	w.targets = d.book.Targets()
	w.heard = d.book.TakeHeard()
	w.accepted, w.held, w.roots = d.book.Counts()
	d.tellRefused(d.book.Refused())
	return w, nil
}

// drop takes root events out of the book that were found to be accepted no longer, as those are
// that expire (NIP-40).
func (d *discovery) drop(roots []wanted.Short) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range roots {
		if d.book.DropRoot(id) {
			d.signal()
		}
	}
}

// bootstrapRelays reads NGIT_SYNC_BOOTSTRAP_RELAY_URL.
func bootstrapRelays(list []string) ([]nip34.RelayURL, error) {
	var urls []nip34.RelayURL
	for _, s := range list {
		url, err := nip34.NormalizeRelayURL(s)
		if err != nil {
			return nil, fmt.Errorf("NGIT_SYNC_BOOTSTRAP_RELAY_URL is %q: %w", s, err)
		}
		urls = append(urls, url)
	}
	return urls, nil
}

// tellRefused says once when more relays are listed than the limits allow, and once when that is
// over.
func (d *discovery) tellRefused(refused int) {
	d.metrics.refused.Set(float64(refused))
	switch {
	case refused > 0 && !d.over:
		d.log.Warn("announcements list more relays than NGIT_SYNC_MAX_TARGETS and NGIT_SYNC_MAX_HELD_TARGETS allow; the others are not asked",
			"max_targets", d.limit, "max_held_targets", d.heldLimit, "not_asked", refused)
	case refused == 0 && d.over:
		d.log.Info("all relays that announcements list are targets again")
	}
	d.over = refused > 0
}

type metrics struct {
	repositories, targets, refused prometheus.Gauge
	reads                          prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		repositories: prometheus.NewGauge(prometheus.GaugeOpts{Name: "ngit_repositories_total", Help: "Repositories whose announcement is served."}),
		targets:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "tendril_discovery_targets", Help: "Relays that should be asked for something."}),
		refused:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "tendril_discovery_refused_relays", Help: "Relays that are listed and not asked because the limits of targets are reached."}),
		reads:        prometheus.NewCounter(prometheus.CounterOpts{Name: "tendril_discovery_reads_total", Help: "Look-ups of accepted events, events read, and repositories whose root events were asked for."}),
	}
	reg.MustRegister(m.repositories, m.targets, m.refused, m.reads)
	return m
}
