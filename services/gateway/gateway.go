package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/candidates"
	"tendril.dev/lib/claim"
	"tendril.dev/lib/gitquery"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/node"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/git"
	"tendril.dev/services/gateway/guard"
	"tendril.dev/services/gateway/pages"
	"tendril.dev/services/gateway/relay"
)

// lastRequests is how long connections are kept at a stop for one more request. A client that is
// between two requests, or takes the answer to one, makes the next one in that time, and hears that
// the connection ends after it; if the connection were closed under it, it might fail.
const lastRequests = 2 * time.Second

// Run serves until ctx ends, and then stops gracefully: events in flight have their verdicts,
// sockets are closed with 1001, HTTP requests are finished, and then nothing new comes in.
func Run(ctx context.Context, n *node.Node) error {
	shards, err := claim.Watch(ctx, n.Bus, proto.GroupShards, n.Log)
	if err != nil {
		return err
	}
	defer shards.Close() // when the last connection has ended
	ingest, err := candidates.New(n.Bus.Conn, n.Log)
	if err != nil {
		return err
	}
	var introducing sync.WaitGroup
	defer introducing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	introducing.Go(func() { introduce(ctx, n, ingest) })
	return serve(ctx, n, relay.DefaultBounds, shards, ingest, shards.Ended)
}

// serve ends too when lost has an error: who has which repository is not known then.
func serve(ctx context.Context, n *node.Node, bounds relay.Bounds, shards git.Shards, ingest *candidates.Sender,
	lost <-chan error) error {
	limits := fitConnections(relay.Limits{Front: n.Settings.Front, Bounds: bounds}, n.Log)
	door, err := newDoor(n, limits, shards, ingest)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", n.Settings.BindAddress)
	if err != nil {
		return node.ListenError("NGIT_BIND_ADDRESS", n.Settings.BindAddress, err)
	}
	places := limit.NewFair(int64(limits.MaxConnections+limits.OtherConnections),
		int64(limits.MaxConnectionsPerIP+limits.OtherConnectionsPerIP))
	connections := newBounded(listener, places, door.clients.trusts, limits.AnswerStall)
	// What connections need outlives ctx: they are served until the last of them is closed.
	lasting, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	n.Index.Subscribe(door.relay.Feed)
	go door.relay.Run(lasting)
	deaf, err := door.relay.HearEphemeral(n.Bus.Conn)
	if err != nil {
		listener.Close()
		return err
	}
	defer deaf()
	failed := make(chan error, 2)
	go func() { failed <- ingest.Run(lasting) }()

	server := &http.Server{
		Handler:           door,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ConnState:         connections.watch,
		ConnContext:       connections.context,
		// OPTIONS * is answered as any other.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(n.Log.Handler(), slog.LevelDebug),
	}
	go func() { failed <- server.Serve(connections) }()
	n.Ready.Add("gateway", func() error {
		if door.stopping.Load() {
			return errors.New("stopping")
		}
		return nil
	})
	go announce(ctx, n, shards, "http://"+listener.Addr().String())
	n.Log.Info("listening", "address", listener.Addr().String(), "domain", n.Settings.Domain)

	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	case err = <-lost:
	}
	return errors.Join(err, stop(server, door, connections, n.StopWait(), n.Log))
}

// newDoor puts together what needs no connections.
func newDoor(n *node.Node, limits relay.Limits, shards git.Shards, ingest relay.Offerer) (*door, error) {
	s := n.Settings
	clients, err := s.Front.Proxies()
	if err != nil {
		return nil, err
	}
	key, err := s.LoadKey(".")
	if err != nil {
		return nil, err
	}
	// As many questions are worked on at once as there are processors.
	processors := int64(runtime.GOMAXPROCS(0))
	work := limit.NewFair(processors, processors)
	proxy := git.New(shards, n.Bans, limits.GitWait, n.Log)
	workers := gitquery.Client{Conn: n.Bus.Conn, Patience: limits.GitWait, ForPages: true}
	shown, err := pages.New(pages.Options{Settings: s, Limits: limits, Owner: key.Public, Index: n.Index, Bans: n.Bans,
		Work: work, Workers: workers, Log: n.Log})
	if err != nil {
		return nil, err
	}
	rejected, err := obs.Rejections(n.Metrics)
	if err != nil {
		return nil, err
	}
	sockets := limit.NewFair(int64(limits.MaxConnections), int64(limits.MaxConnectionsPerIP))
	met := limit.NewMet(n.Log)
	n.Count(func(figures map[string]int64) { figures["clients"], _, _ = sockets.Counts(0) })
	circle := n.Bans.Circle(s.Private)
	d := &door{
		guard: &guard.Guard{Circle: circle, Domain: s.Domain, Origin: s.Origin(), Base: s.BasePath},
		relay: relay.New(relay.Options{
			Limits: limits, Domain: s.Address(), Circle: circle,
			Index: n.Index, Ingest: ingest, Connections: sockets, Work: work,
			Metrics: relay.NewMetrics(n.Metrics, sockets, s.AbuseThreshold, rejected), Met: met, Log: n.Log, Trace: n.Trace,
		}),
		open: shown, content: guard.Lock(content{shown, proxy, n.AtFront}), git: proxy, health: n.AtFront,
		clients: clients, base: s.BasePath, url: s.URL("http"), stall: limits.AnswerStall, manageTime: limits.EventTimeout,
		bus: n.Bus.Conn, bans: n.Bans, log: n.Log, answers: newAnswers(n.Metrics, met),
		fetches: newAllowance(limits.GitRequestsPerMinute, "git data"),
		shown:   newAllowance(limits.PagesPerMinute, "pages"),
		atOnce:  limit.NewFair(math.MaxInt64, int64(limits.GitRequestsPerIP)),
	}
	d.relay.Banned = d.banned
	n.Bans.OnChange(func(what bans.Subject) {
		if what.Outside.Address != "" {
			d.relay.EndBanned()
		}
	})
	return d, nil
}

// lookForHolders is how often a gateway that has just started looks whether all shards have
// workers.
const lookForHolders = 20 * time.Millisecond

// announce tells where the front door is once git requests can be passed on for every repository:
// who is told may clone and push at once. It is no condition of readiness, because clients of the
// relay are served without.
func announce(ctx context.Context, n *node.Node, shards git.Shards, url string) {
	look := time.NewTicker(lookForHolders)
	defer look.Stop()
	for !git.Everywhere(shards) {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
	n.Announce(node.FrontDoor, url)
}

// stop ends relay connections and HTTP requests side by side. A client that has not taken its
// answer in time is cut off: how fast strangers read must not decide whether this stop was a good
// one.
func stop(server *http.Server, door *door, connections *bounded, within time.Duration, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	door.stopping.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		door.relay.Stop(ctx)
	}()
	last, cancel := context.WithTimeout(ctx, lastRequests)
	defer cancel()
	connections.drain(last)
	err := server.Shutdown(ctx)
	<-ended
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("clients that were too slow are cut off", "waited", within)
		err = nil
	}
	err = errors.Join(err, server.Close())
	door.git.Close()
	if err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}
