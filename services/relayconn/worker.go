package relayconn

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"tendril.dev/lib/candidates"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/config"
	"tendril.dev/lib/netguard"
	"tendril.dev/lib/node"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/lib/testonly"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/health"
	"tendril.dev/services/relayconn/intake"
	"tendril.dev/services/relayconn/session"
	"tendril.dev/services/relayconn/wire"
)

// connectApart is how long after one another a process connects to relays, and beginApart how long
// after one another walks through the past begin on a connection.
const connectApart, beginApart = 250 * time.Millisecond, 250 * time.Millisecond

// maxEventBytes bounds an event that a relay sends.
const maxEventBytes = 1 << 20

// Rules that tests of whole processes change.
var (
	reconnectWindow = testonly.Duration("SYNC_RECONNECT_WINDOW", 15*time.Minute)
	check           = testonly.Duration("SYNC_CHECK", 2*time.Second)
)

// silentLook is how often it is looked whether a live subscription has fallen silent.
const silentLook = time.Hour

// Run runs one worker until ctx ends; its claims are handed over then.
func Run(ctx context.Context, n *node.Node) error { return runBy(ctx, n, rulesOf(n.Settings.Sync)) }

// runBy is Run by rules.
func runBy(ctx context.Context, n *node.Node, rules Rules) error {
	metrics := NewMetrics(n.Metrics)
	sender, err := candidates.New(n.Bus.Conn, n.Log)
	if err != nil {
		return err
	}
	states, err := n.Bus.Bucket(ctx, proto.BucketRelays)
	if err != nil {
		return err
	}
	in := intake.New(intake.Options{Offerer: sender, Stored: n.Accepted, Metrics: n.Metrics, Trace: n.Trace})
	hosting, err := n.Settings.Hosting()
	if err != nil {
		return err
	}
	guard := netguard.New(netguard.Options{AllowPrivate: n.Settings.AllowPrivate, DialTimeout: rules.Health.Base})
	defer guard.CloseIdleConnections()
	names := make(chan []string, 1)
	all := NewTargets(n.Bus.JS, n.Accepted, millis(n.Settings.Sync.BatchWindowMillis), n.Settings.Sync.DescendantLimit,
		names, n.Log)
	plus, err := n.Settings.Plus()
	if err != nil {
		return err
	}
	all.plusOff = plus.Off
	env := &Env{
		Rules: rules, Domain: n.Settings.Address(), Hosting: hosting, Private: n.Settings.PrivateMode, Hash: n.Settings.RulesHash() +
			session.Shape(), Worker: n.Worker, Started: time.Now(), JS: n.Bus.JS, States: states,
		Connects: rate.NewLimiter(rate.Every(connectApart), 1),
		Dial: func(ctx context.Context, url string) (Connection, error) {
			return wire.Dial(ctx, guard, url, maxEventBytes)
		},
		Document: func(ctx context.Context, url string) (wire.Stated, error) {
			return wire.FetchDocument(ctx, guard.HTTPClient(), url)
		},
		Bans: n.Bans, Intake: in, Targets: all, Metrics: metrics, Log: n.Log, visits: semaphore.NewWeighted(visitsAtOnce),
		Sign: func(ev *nostr.Event) error {
			key, err := n.Settings.FindKey(".") // as it is now: the gateway may just have made it
			if err != nil {
				return err
			}
			return key.Sign(ev)
		},
	}
	if !n.Settings.Sync.DisableNegentropy {
		env.Negentropy = &session.Negentropy{
			Service: query.Reconciler{Conn: n.Bus.Conn}, Room: semaphore.NewWeighted(session.RoomBytes), Seq: n.Accepted.Seq, Coordinator: &session.HistoryCoordinator{},
		}
	}
	member, err := claim.Join(ctx, n.Bus, claim.Options{Group: proto.GroupRelays, Worker: n.Worker, Log: n.Log})
	if err != nil {
		return err
	}
	env.Fetches = newFetches(env, member.Directory(), n.Worker)
	said, err := n.Bus.Conn.Subscribe(proto.SubjectFetch, func(m *nats.Msg) { env.Fetches.hear(ctx, m.Data) })
	if err != nil {
		return fmt.Errorf("hear which events to ask for by id: %w", err)
	}
	defer func() { _ = said.Unsubscribe() }()
	n.Ready.Add("relayconn", func() error { return cmp.Or(all.stream.CaughtUp(), member.Alive()) })
	n.Projection("relayconn_targets", proto.StreamTargets, all.stream.Seq)
	// Intake and sender outlive the sessions, so that verdicts still come while they end.
	sending, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return sender.Run(sending) })
	group.Go(func() error { return in.Run(sending) })
	group.Go(func() error { return all.Run(ctx) })
	if n.Settings.HasPublicName() && !n.Settings.PrivateMode {
		group.Go(func() error { introduce(ctx, env, plus.Index, n); return nil })
	}
	group.Go(func() error {
		defer stopSending()
		return member.Work(ctx, names, env.Run)
	})
	defer member.Leave()
	defer env.Fetches.wait()
	return group.Wait()
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// rulesOf turns settings into the numbers that sessions and relays are kept to.
func rulesOf(s config.Sync) Rules {
	return Rules{
		Sync:            s,
		ReconnectWindow: reconnectWindow, DailyMin: 23 * time.Hour, DailyMax: 25 * time.Hour, Check: check,
		Session: session.Rules{
			PageLimit: 500, AtOnce: 16, MaxFilters: 70, Calm: millis(s.BatchWindowMillis) + time.Second,
			Silence: time.Minute, ConsolidateWait: time.Minute, Cooldown: 65 * time.Second, Apart: beginApart,
			SilentLook: silentLook,
		},
		Health: health.Rules{
			Base: seconds(s.BaseBackoffSeconds), Max: seconds(s.MaxBackoffSeconds), Stable: 5 * time.Minute,
			DeadAfter:  24 * time.Hour,
			NaughtyFor: time.Duration(s.NaughtyHours) * time.Hour,
		},
	}
}
