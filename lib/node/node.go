// Package node is a process that services run in: what each is handed (settings, bus, index, log,
// metrics, readiness) and the life cycle around them. One process may run one service or all of
// them; a service cannot tell which (docs/architecture.md).
package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/obs"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

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

	Log     *slog.Logger
	Metrics *prometheus.Registry
	Ready   *obs.Readiness
	// Observation answers /metrics, /healthz and /readyz; [Observation] serves it on a port of its
	// own.
	Observation *http.ServeMux
	// AtFront is what the front door serves of it: everything, unless the process has
	// [Observation]. Then the front door has no /metrics, as it may be open to the world.
	AtFront http.Handler
	// Worker is this process's name in claims; Incarnation differs for every start.
	Worker, Incarnation string

	alone     bool   // no other service runs in the process
	process   string // its name, as Open was told
	scratch   string // the git folder of a process that nothing outlives; empty: none
	addresses *addresses
	bus       *busWait
	lag       *lag
	overdue   *atomic.Bool // a service still runs although the graceful stop is over
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
	// Early: it runs while the process still waits for the bus, and uses neither bus nor index.
	Early bool
}

// Open opens the bus and the index for the services that will run. name says what the process is
// ("ingest", "up").
func Open(ctx context.Context, name string, s config.Settings, log *slog.Logger, services ...Service) (*Node, error) {
	n, err := prepare(name, s, log)
	if err != nil {
		return nil, err
	}
	return n, n.open(ctx, nil, services)
}

// prepare makes what needs no bus.
func prepare(name string, s config.Settings, log *slog.Logger) (*Node, error) {
	n := &Node{
		Settings:    s,
		Log:         log,
		Metrics:     prometheus.NewRegistry(),
		Ready:       &obs.Readiness{},
		Observation: http.NewServeMux(),
		Worker:      s.WorkerName,
		Incarnation: rand.Text(),
		process:     name,
		addresses:   &addresses{},
		bus:         &busWait{},
		overdue:     &atomic.Bool{},
	}
	for _, warning := range s.Warnings {
		log.Warn(warning)
	}
	if n.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name this worker: %w; set NGIT_WORKER_NAME", err)
		}
		n.Worker = workerName(host) + "-" + n.Incarnation[:6]
	}
	n.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), obs.BuildInfo(), obs.Uptime(time.Now()))
	var gatherer prometheus.Gatherer
	if s.MetricsEnabled {
		gatherer = n.Metrics
	}
	obs.Mount(n.Observation, n.Ready, gatherer)
	n.AtFront = n.Observation

	n.Ready.Add("bus", n.bus.err)
	return n, nil
}

// open opens index and bus. waiting is told what it waits for, see [bus.Options].
func (n *Node) open(ctx context.Context, waiting func(what string), services []Service) error {
	s, log := n.Settings, n.Log
	busDir, indexDir := filepath.Join(s.RelayDataPath, "nats"), filepath.Join(s.RelayDataPath, "index-"+n.process)
	if s.DatabaseBackend == "memory" {
		busDir, indexDir = "", ""
	}
	if err := n.makeScratch(); err != nil {
		return err
	}
	var err error
	var newLog func() error
	if hasIndex(s.NATSURL, services) {
		// The index first: its lock keeps a second process off the folder, which the embedded NATS
		// would share with disaster.
		if err := n.openIndex(indexDir); err != nil {
			return errors.Join(err, n.removeScratch())
		}
		newLog = n.Index.LogGone
	}
	n.Bus, err = bus.Open(ctx, bus.Options{
		Name: "tendril " + n.process + " " + n.Worker, Sizing: Sizing(s), Log: log,
		URL: s.NATSURL, LoginFile: s.NATSLoginFile, Creds: s.NATSCreds, CA: s.NATSCA, Cert: s.NATSCert, Key: s.NATSKey, Role: n.process,
		Dir: busDir, Listen: s.NATSListen, Password: s.NATSPassword,
		Provisions: slices.ContainsFunc(services, func(s Service) bool { return s.Provisions }), Needs: needs(services),
		Waiting: waiting, NewLog: newLog,
	})
	if err != nil {
		return errors.Join(busError(s, err), n.closeIndex(), n.removeScratch())
	}
	n.Metrics.MustRegister(prometheus.NewCounterFunc(
		prometheus.CounterOpts{Name: "tendril_nats_refused_total", Help: "What this process wanted to publish or subscribe to and NATS did not permit."},
		func() float64 { return float64(n.Bus.Refused()) }))
	n.lag = newLag(func(ctx context.Context, stream string) (uint64, error) { return bus.LastSeq(ctx, n.Bus.JS, stream) })
	n.Metrics.MustRegister(n.lag)
	n.Ready.Add("bus", func() error {
		if !n.Bus.Conn.IsConnected() {
			return errors.New("not connected to NATS")
		}
		return nil
	})
	if n.Index == nil {
		err = n.ask(ctx)
	} else {
		err = n.bindIndex(ctx)
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	return nil
}

// bindIndex makes the index that of the bus's log.
func (n *Node) bindIndex(ctx context.Context) error {
	n.Projection("index", proto.StreamEvents, n.Index.Seq)
	n.Accepted = query.NewIndex(n.Index, n.Bus)
	return eventdb.Bind(ctx, n.Bus.JS, n.Index, n.Log)
}

// needs are the streams that the services need, and the log, which everybody reads or asks about.
func needs(services []Service) []string {
	streams := proto.Needs("")
	for _, s := range services {
		streams = append(streams, proto.Needs(s.Name)...)
	}
	slices.Sort(streams)
	return slices.Compact(streams)
}

// busWait is what the start still waits for.
type busWait struct {
	mu   sync.Mutex
	what string
}

func (w *busWait) set(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.what = what
}

// err says what for, as the bus is not there yet.
func (w *busWait) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Errorf("waiting for the bus: %s", cmp.Or(w.what, "connecting"))
}

// openIndex opens the event index in dir (empty: in memory) and tells how it is.
func (n *Node) openIndex(dir string) (err error) {
	if n.Index, err = openIndex(n.Settings, dir, n.Log); err != nil {
		return err
	}
	n.Metrics.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "tendril_index_sequence", Help: "Sequence of the log that this process's event index has applied."},
		func() float64 { return float64(n.Index.Seq()) }))
	return nil
}

// openIndex opens the event index in dir (empty: in memory) and says in a sentence what an operator
// can do about a folder that cannot be opened.
func openIndex(s config.Settings, dir string, log *slog.Logger) (*eventdb.DB, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, storageError(s, err)
		}
	}
	index, err := eventdb.Open(dir, eventdb.Options{
		Cache: s.IndexCacheBytes, KeepDeleted: s.IgnoreDeletions, ForgottenLog: s.ForgetLog, Log: log,
	})
	if err != nil {
		return nil, storageError(s, err)
	}
	return index, nil
}

// busError says in the words of every other address why the embedded NATS cannot listen; other
// errors of the bus speak for themselves.
func busError(s config.Settings, err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "listen" {
		return ListenError("NGIT_NATS_LISTEN", s.NATSListen, op)
	}
	return err
}

func storageError(s config.Settings, err error) error {
	var reason string
	var path *fs.PathError
	switch {
	case errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "lock held by current process"):
		reason = "another process works in this folder; stop it, or give each a folder of its own"
	case errors.Is(err, fs.ErrPermission):
		reason = "permission denied; want a folder that this user may write to"
	case errors.As(err, &path):
		reason = path.Err.Error() + "; want a folder that this user may write to"
	default:
		return fmt.Errorf("NGIT_RELAY_DATA_PATH is %q: %w", s.RelayDataPath, err)
	}
	return &config.Error{Setting: "NGIT_RELAY_DATA_PATH", Value: s.RelayDataPath, Reason: reason}
}

// Close closes the index and the bus. After a stop that took too long the index stays open, because
// a service may still read from it; the end of the process closes it, and what it then lacks it
// reads from the log again.
func (n *Node) Close() error {
	var err error
	if !n.overdue.Load() {
		err = n.closeIndex()
	}
	n.Bus.Close()
	return errors.Join(err, n.removeScratch())
}

// makeScratch gives a process that nothing outlives a git folder of its own, unless the operator
// has named one. Processes that share a NATS server share a git folder too: for them nothing is
// made.
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

func (n *Node) removeScratch() error {
	if n.scratch == "" {
		return nil
	}
	if err := os.RemoveAll(n.scratch); err != nil {
		return fmt.Errorf("remove the git folder of this process: %w", err)
	}
	return nil
}

// minCandidateBytes is a queue of candidates that the largest message fits into: one that never
// fits would be sent for ever.
const minCandidateBytes = 2 << 20

// Sizing turns settings into what the streams are made with.
func Sizing(s config.Settings) proto.Sizing {
	return proto.Sizing{
		Replicas:       s.NATSReplicas,
		CandidateBytes: max(s.CandidateBytes, minCandidateBytes),
		RejectedMaxAge: time.Duration(s.RejectedColdSeconds) * time.Second,
		WorkerTTL:      s.WorkerTTL,
		ClaimWait:      s.CandidateWait,
		MemoryOnly:     s.DatabaseBackend == "memory",
	}
}

// workerName makes a host's name fit for a key: what is not a letter, a digit or '-' becomes '-'.
func workerName(host string) string {
	b := []byte(host)
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
			b[i] = '-'
		}
	}
	return string(b)
}
