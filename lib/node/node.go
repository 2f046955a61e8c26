// Package node is a process that services run in: what each is handed (settings, bus, index, log, metrics, readiness) and the
// life cycle around them. One process may run one service or all of them; a service cannot tell which (design.md, In one process).
package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/config"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

// Node is what every service is handed.
type Node struct {
	Settings config.Settings
	Bus      *bus.Bus
	// Index is the projection of the log, followed from the log while the node runs. All services of a process share it.
	Index   *eventdb.DB
	Log     *slog.Logger
	Metrics *prometheus.Registry
	Ready   *obs.Readiness
	// Observation is where /metrics, /healthz and /readyz are served; the front door mounts it on its own port.
	Observation *http.ServeMux
	// Worker is this process's name in claims; Incarnation differs for every start.
	Worker, Incarnation string
}

// Service is one service: its name and what runs it until ctx ends. Run returns nil after a graceful stop.
type Service struct {
	Name string
	Run  func(ctx context.Context, n *Node) error
}

// Open opens the bus and the index. name says what the process is ("ingest", "up").
func Open(ctx context.Context, name string, s config.Settings, log *slog.Logger) (*Node, error) {
	n := &Node{
		Settings:    s,
		Log:         log,
		Metrics:     prometheus.NewRegistry(),
		Ready:       &obs.Readiness{},
		Observation: http.NewServeMux(),
		Worker:      s.WorkerName,
		Incarnation: rand.Text(),
	}
	if n.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name this worker: %w; set NGIT_WORKER_NAME", err)
		}
		n.Worker = workerName(host) + "-" + n.Incarnation[:6]
	}
	n.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var gatherer prometheus.Gatherer
	if s.MetricsEnabled {
		gatherer = n.Metrics
	}
	obs.Mount(n.Observation, n.Ready, gatherer)

	busDir, indexDir := filepath.Join(s.RelayDataPath, "nats"), filepath.Join(s.RelayDataPath, "index-"+name)
	if s.DatabaseBackend == "memory" {
		busDir, indexDir = "", ""
	}
	var err error
	n.Bus, err = bus.Open(ctx, bus.Options{
		URL: s.NATSURL, Creds: s.NATSCreds, Name: "tendril " + name + " " + n.Worker,
		Dir: busDir, Listen: s.NATSListen, Sizing: Sizing(s), Log: log,
	})
	if err != nil {
		return nil, err
	}
	n.Index, err = eventdb.Open(indexDir, eventdb.WithCache(s.IndexCacheBytes), eventdb.WithDeletionsDisrespected(s.IgnoreDeletions))
	if err != nil {
		n.Bus.Close()
		return nil, fmt.Errorf("open the event index: %w", err)
	}
	if err := eventdb.Bind(ctx, n.Bus.JS, n.Index, log); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	n.Ready.Add("bus", func() error {
		if !n.Bus.Conn.IsConnected() {
			return errors.New("not connected to NATS")
		}
		return nil
	})
	return n, nil
}

// Close closes the index and the bus.
func (n *Node) Close() error {
	err := n.Index.Close()
	n.Bus.Close()
	return err
}

// Sizing turns settings into what the streams are made with.
func Sizing(s config.Settings) proto.Sizing {
	return proto.Sizing{
		Replicas:       s.NATSReplicas,
		CandidateBytes: s.CandidateBytes,
		RejectedMaxAge: time.Duration(s.RejectedColdSeconds) * time.Second,
		WorkerTTL:      s.WorkerTTL,
		ClaimWait:      s.CandidateWait,
		TurnTTL:        s.WriterTTL,
		MemoryOnly:     s.DatabaseBackend == "memory",
	}
}

// Run follows the log into the index and runs the services until ctx ends or one fails, then stops them in reverse order, each
// given what is left of NGIT_SHUTDOWN_WAIT: put those first that others need to finish their work.
func (n *Node) Run(ctx context.Context, services ...Service) error {
	head, err := n.Bus.LastSeq(ctx, proto.StreamEvents)
	if err != nil {
		return err
	}
	n.Ready.Add("index", func() error {
		if seq := n.Index.Seq(); seq < head {
			return fmt.Errorf("reading the log: at %d of %d", seq, head)
		}
		return nil
	})
	services = append([]Service{{Name: "index", Run: func(ctx context.Context, n *Node) error {
		return eventdb.Follow(ctx, n.Bus.JS, n.Index, n.Log.With("part", "index"))
	}}}, services...)

	failed := make(chan error, len(services))
	var running []*running
	for _, s := range services {
		running = append(running, start(ctx, n, s, failed))
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-failed:
	}
	deadline := time.Now().Add(n.Settings.ShutdownWait)
	for i := len(running) - 1; i >= 0; i-- {
		if stopErr := running[i].stop(deadline); stopErr != nil {
			n.Log.Warn("service did not stop well", "service", running[i].name, "error", stopErr)
			err = errors.Join(err, stopErr)
		}
	}
	return err
}

// running is a service that was started.
type running struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// start runs s in a context of its own, so that a stop reaches the services one after the other and not all at once.
func start(ctx context.Context, n *Node, s Service, failed chan<- error) *running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{name: s.Name, cancel: cancel, done: make(chan struct{})}
	log := n.Log.With("service", s.Name)
	scoped := *n
	scoped.Log = log
	go func() {
		defer close(r.done)
		if err := s.Run(own, &scoped); err != nil && !errors.Is(err, context.Canceled) {
			failed <- fmt.Errorf("%s: %w", s.Name, err)
		} else if own.Err() == nil {
			failed <- fmt.Errorf("%s: ended by itself", s.Name)
		}
	}()
	return r
}

func (r *running) stop(deadline time.Time) error {
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-time.After(time.Until(deadline)):
		return fmt.Errorf("%s: still running at the end of the graceful stop", r.name)
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
