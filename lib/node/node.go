// Package node is a process that services run in: what each is handed (settings, bus, index, log,
// metrics, readiness) and the life cycle around them. One process may run one service or all of
// them; a service cannot tell which (docs/architecture.md). It owns no state of a service.
package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"tendril.dev/lib/bans"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/disk"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/obs"
	"tendril.dev/lib/query"
	"tendril.dev/lib/testonly"
	"tendril.dev/proto"
)

// FrontDoor is the name under which the front door announces its URL.
const FrontDoor = "front door"

// Node is what every service is handed.
type Node struct {
	Settings config.Settings
	Bus      *bus.Bus
	// Index is the projection of the log, followed from the log while the node runs. All services
	// of a process share it; nil where all of them only ask ([Service.Asks]).
	Index *eventdb.DB
	// Accepted is asked which events are accepted. It answers from Index, or asks the processes
	// that have one.
	Accepted query.Source
	// Bans are what an operator has banned; the index does not show it.
	Bans *bans.Set

	Log     *slog.Logger
	Metrics *prometheus.Registry
	Ready   *obs.Readiness
	// AtFront is what the front door serves of /metrics, /healthz and /readyz: all, unless the
	// process serves them on a port of its own. Then the front door has no /metrics, as it may be
	// open to the world.
	AtFront *http.ServeMux
	// Trace makes the service's spans.
	Trace *obs.Tracer
	// Worker is this process's name in claims. Each start has another.
	Worker string

	*shared
	alone bool // no other service runs in the process
}

// shared is what all services of a process have in common.
type shared struct {
	process   string   // its name, as Open was told
	scratch   string   // the git folder of a process that keeps nothing on disk; empty: none
	addresses sync.Map // URLs by name
	servers   []*http.Server
	traces    *obs.Traces
	overdue   atomic.Bool            // a service still runs although the graceful stop is over
	deadline  time.Time              // of the stop, once it has begun
	closing   atomic.Pointer[string] // what is being closed
	lag       *lag
	head      uint64 // of the log, when the index was opened
}

// Service is one service: its name and what runs it until ctx ends. Run returns nil after a
// graceful stop.
type Service struct {
	Name string
	Run  func(ctx context.Context, n *Node) error
	// Provisions: a process with this service makes the streams, buckets and consumers. All others
	// wait until those are there that their services need.
	Provisions bool
	// Asks: it needs no index of the log of its own, and only asks [Node.Accepted]. A process of
	// such services keeps nothing of the log, unless it embeds the NATS server.
	Asks bool
}

// StopWait is how long what a service has under way may go on once its Run is asked to end. It is a
// part of NGIT_SHUTDOWN_WAIT: the others of the process, which stop afterwards, need some of that
// too.
func (n *Node) StopWait() time.Duration {
	if n.alone {
		return n.Settings.ShutdownWait / 10 * 9
	}
	return n.Settings.ShutdownWait / 2
}

// Announce says that name is served at url from now on. A configured port 0 is any port: only who
// listens knows which.
func (n *Node) Announce(name, url string) { n.addresses.Store(name, url) }

// Announced is the URL that was announced under name; empty if none was yet.
func (n *Node) Announced(name string) string {
	url, _ := n.addresses.Load(name)
	text, _ := url.(string)
	return text
}

// Open opens the bus and the index for the services that will run. name says what the process is
// ("ingest", "up"). apart: its system has other processes. Then it needs a NATS server that they
// share, waits for NATS and the streams as long as it takes, and serves /metrics, /healthz and
// /readyz on a port of its own, from the beginning.
func Open(ctx context.Context, name string, s config.Settings, log *slog.Logger, apart bool,
	services ...Service) (*Node, error) {
	return openWithLevel(ctx, name, s, log, &slog.LevelVar{}, apart, services...)
}

// openWithLevel is Open for a process whose log has this level.
func openWithLevel(ctx context.Context, name string, s config.Settings, log *slog.Logger, level *slog.LevelVar,
	apart bool,
	services ...Service) (n *Node, err error) {
	n = &Node{
		Settings: s, Log: log, Metrics: prometheus.NewRegistry(), Ready: &obs.Readiness{}, AtFront: http.NewServeMux(),
		Worker: testonly.String("WORKER_NAME", ""), shared: &shared{process: name},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	for _, warning := range s.Warnings {
		log.Warn(warning)
	}
	if n.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			return n, fmt.Errorf("name this worker: %w", err)
		}
		n.Worker = workerName(host) + "-" + rand.Text()[:8]
	}
	if apart && s.NATSURL == "" {
		return n, &config.Error{Setting: "NGIT_NATS_URL", Reason: "is not set: a service that runs alone needs a NATS server that the others share (`tendril up` embeds one)"}
	}
	n.traces = obs.OpenTraces(log)
	waiting, err := n.observe(apart, level)
	if err != nil {
		return n, err
	}
	if err := n.makeScratch(); err != nil {
		return n, err
	}
	var newLog func() error
	if hasIndex(s.NATSURL, services) {
		// The index first: its lock keeps a second process off the folder, which the embedded NATS
		// would share with disaster.
		if err := n.openIndex(); err != nil {
			return n, err
		}
		newLog = n.Index.LogGone
	}
	if err := n.openBus(ctx, waiting, newLog, services); err != nil {
		return n, err
	}
	if n.Index == nil {
		return n, n.ask(ctx)
	}
	return n, n.bindIndex(ctx)
}

// observeApart is where a process of a system with others is observed, unless NGIT_OBSERVE_ADDRESS
// says where.
const observeApart = "127.0.0.1:7335"

// observe begins to serve what tells how the process stands. waiting is told what the start waits
// for; nil: it does not wait.
func (n *Node) observe(apart bool, level *slog.LevelVar) (waiting func(what string), err error) {
	s := n.Settings
	n.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		obs.BuildInfo(), obs.Uptime(time.Now()), newDisks(s))
	n.Ready.Add("bus", func() error { return errors.New("waiting for the bus: connecting") })
	var metrics prometheus.Gatherer
	if s.MetricsEnabled {
		metrics = n.Metrics
	}
	address := s.ObserveAddress
	if apart {
		address = cmp.Or(address, observeApart)
		waiting = func(what string) {
			n.Ready.Add("bus", func() error { return fmt.Errorf("waiting for the bus: %s", what) })
		}
	}
	if address == "" {
		if s.PrivateMode { // the metrics name repositories, and the front port is open to the world
			metrics = nil
		}
		obs.Mount(n.AtFront, n.Ready, metrics)
		return waiting, nil
	}
	obs.Mount(n.AtFront, n.Ready, nil)
	own := http.NewServeMux()
	obs.Mount(own, n.Ready, metrics)
	obs.MountPrivate(own, level, n.Log)
	return waiting, n.listen("observation", "NGIT_OBSERVE_ADDRESS", address, own)
}

// openBus opens the bus; see [bus.Options] for waiting and newLog.
func (n *Node) openBus(ctx context.Context, waiting func(what string), newLog func() error,
	services []Service) (err error) {
	s := n.Settings
	needs := proto.Needs("") // the log, which every process reads or asks about
	for _, s := range services {
		needs = append(needs, proto.Needs(s.Name)...)
	}
	slices.Sort(needs)
	n.Bus, err = bus.Open(ctx, bus.Options{
		Name: "tendril " + n.process + " " + n.Worker, Sizing: Sizing(s), Log: n.Log,
		URL: s.NATSURL, LoginFile: s.NATSLoginFile, Creds: s.NATSCreds, CA: s.NATSCA, Cert: s.NATSCert, Key: s.NATSKey,
		Role: n.process, Dir: n.folder("nats"), Listen: s.NATSListen, Password: s.NATSPassword,
		Provisions: slices.ContainsFunc(services, func(s Service) bool { return s.Provisions }), Needs: slices.Compact(needs),
		Waiting: waiting, NewLog: newLog,
	})
	if err != nil {
		return err
	}
	if n.Bans, err = bans.Open(ctx, n.Bus.JS, s.Policy, n.Log); err != nil {
		return err
	}
	if n.Bans.WasPrivate() && !s.PrivateMode {
		return config.WasPrivate("in the log")
	}
	n.lag = newLag(n.Bus.JS, n.Metrics)
	n.Metrics.MustRegister(prometheus.NewCounterFunc(
		prometheus.CounterOpts{Name: "tendril_nats_refused_total",
			Help: "What this process wanted to publish or subscribe to and NATS did not permit."},
		func() float64 { return float64(n.Bus.Refused()) }))
	n.Ready.Add("bus", func() error {
		if !n.Bus.Conn.IsConnected() {
			return errors.New("not connected to NATS")
		}
		return nil
	})
	return nil
}

// folder is one of those in the relay data folder; empty: it keeps nothing on disk.
func (n *Node) folder(name string) string {
	if n.Settings.DatabaseBackend == "memory" {
		return ""
	}
	return filepath.Join(n.Settings.RelayDataPath, name)
}

// hasIndex reports whether a process with these services keeps an index of the log: one of them
// needs it, or there is no other process to ask, or it is not said which services there will be.
func hasIndex(natsURL string, services []Service) bool {
	return natsURL == "" || len(services) == 0 || slices.ContainsFunc(services, func(s Service) bool { return !s.Asks })
}

// ask has the process ask others about accepted events, and nothing of the log is kept here.
func (n *Node) ask(ctx context.Context) error {
	remote, err := query.NewRemote(ctx, n.Bus, n.Log)
	if err != nil {
		return err
	}
	n.Accepted = remote
	n.Ready.Add("accepted events", remote.Answered)
	return nil
}

// bindIndex makes the index that of the bus's log. The process is ready when it has read what the
// log holds now.
func (n *Node) bindIndex(ctx context.Context) error {
	n.Projection("index", proto.StreamEvents, n.Index.Seq)
	n.Accepted = query.NewIndex(n.Index, n.Bus)
	if err := eventdb.Bind(ctx, n.Bus.JS, n.Index, n.Log); err != nil {
		return err
	}
	head, err := bus.LastSeq(ctx, n.Bus.JS, proto.StreamEvents)
	if err != nil {
		return err
	}
	n.head = head
	n.Ready.Add("index", func() error {
		if seq := n.Index.Seq(); seq < head {
			return fmt.Errorf("reading the log: at %d of %d", seq, head)
		}
		return nil
	})
	return n.Index.Hide(n.Bans)
}

// openIndex opens the event index.
func (n *Node) openIndex() (err error) {
	s, dir := n.Settings, n.folder("index-"+n.process)
	if dir != "" {
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			err = disk.Reserve(dir, n.folder("reserve-"+n.process))
		}
		if err != nil {
			return storageError(s, err)
		}
	}
	n.Index, err = eventdb.Open(dir, eventdb.Options{
		KeepDeleted: s.IgnoreDeletions, ForgottenLog: s.ForgetLog, Log: n.Log,
	})
	if err != nil {
		return storageError(s, err)
	}
	n.Metrics.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "tendril_index_sequence",
			Help: "Sequence of the log that this process's event index has applied."},
		func() float64 { return float64(n.Index.Seq()) }))
	return nil
}

// storageError says in a sentence what an operator can do about a folder that cannot be opened.
func storageError(s config.Settings, err error) error {
	var reason string
	path, isPath := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "lock held by current process"):
		reason = "another process works in this folder; stop it, or give each a folder of its own"
	case isPath:
		reason = path.Err.Error() + "; want a folder that this user may write to"
	default:
		return fmt.Errorf("NGIT_RELAY_DATA_PATH is %q: %w", s.RelayDataPath, err)
	}
	return &config.Error{Setting: "NGIT_RELAY_DATA_PATH", Value: s.RelayDataPath, Reason: reason}
}

// Close closes the index and the bus. After a stop that took too long the index stays open, because
// a service may still read from it; the end of the process closes it, and what it then lacks it
// reads from the log again.
func (n *Node) Close() (err error) {
	if n.Index != nil && !n.overdue.Load() {
		n.closing.Store(new("the event index in " + n.Settings.RelayDataPath))
		err = n.Index.Close()
	}
	if n.Bus != nil {
		n.closing.Store(new("the connection to NATS"))
		if n.Settings.NATSURL == "" {
			n.closing.Store(new("the embedded NATS server in " + n.Settings.RelayDataPath))
		}
		n.Bus.Close()
	}
	n.closing.Store(new("the listeners"))
	if n.scratch != "" {
		err = errors.Join(err, os.RemoveAll(n.scratch))
	}
	for _, server := range n.servers {
		err = errors.Join(err, server.Close())
	}
	n.traces.Close()
	return err
}

// makeScratch gives a process that keeps nothing on disk a git folder of its own, unless the
// operator has named one. Processes that share a NATS server share a git folder too: for them
// nothing is made.
func (n *Node) makeScratch() (err error) {
	s := &n.Settings
	if s.DatabaseBackend != "memory" || s.NATSURL != "" || s.GitDataPath != config.DefaultGitDataPath {
		return nil
	}
	if n.scratch, err = os.MkdirTemp("", "tendril-git-"); err != nil {
		return fmt.Errorf("make a git folder for NGIT_DATABASE_BACKEND=memory: %w; set NGIT_GIT_DATA_PATH", err)
	}
	s.GitDataPath = n.scratch
	return nil
}

var (
	// candidateBytes bounds each queue of candidates. The largest message must fit into it: one that
	// never fits would be sent for ever.
	candidateBytes = testonly.Int("CANDIDATE_QUEUE_BYTES", 64<<20)
	// candidateWait is how long a candidate may be in the writer's hands before it is handed out again.
	candidateWait = testonly.Duration("CANDIDATE_ACK_WAIT", 10*time.Second)
)

// Sizing turns settings into what the streams are made with.
func Sizing(s config.Settings) proto.Sizing {
	return proto.Sizing{
		Replicas: s.NATSReplicas, CandidateBytes: int64(candidateBytes),
		RejectedMaxAge: time.Duration(s.RejectedColdSeconds)*time.Second +
			48*time.Hour, // how often an event has expired is known for longer
		WorkerTTL: s.WorkerTTL, ClaimWait: candidateWait,
		MemoryOnly: s.DatabaseBackend == "memory",
	}
}

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9-]`)

// workerName makes a host's name fit for a key.
func workerName(host string) string { return notInNames.ReplaceAllString(host, "-") }
