package node

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

const (
	// lagAge is how old the end of a stream may be that metrics are told from: a reader of
	// the metrics must not make the bus work each time.
	lagAge = time.Second
	// lagWait bounds how long the bus is asked. What it does not say is not told.
	lagWait = 2 * time.Second
	// tellEvery is how often a process tells how far it has read.
	tellEvery = time.Second
)

var lagDesc = prometheus.NewDesc("tendril_projection_lag",
	"How far a projection of this process is behind the end of its stream, in sequences.", []string{"projection"}, nil)

// lag is the metric of how far projections are behind their streams.
type lag struct {
	js jetstream.JetStream

	mu          sync.Mutex
	projections map[string]projection // by name
	counts      []func(map[string]int64)
	asked       time.Time
	ends        map[string]uint64 // last sequences by stream; without those that are not known
}

// projection is what a service makes of a stream.
type projection struct {
	stream string
	seq    func() uint64 // of the last message read
}

func newLag(js jetstream.JetStream) *lag {
	return &lag{js: js, projections: map[string]projection{}}
}

// Projection makes it a metric how far a service is behind a stream that it reads. seq is the
// sequence of the last message that it has read; it is called by any goroutine.
func (n *Node) Projection(name, stream string, seq func() uint64) {
	n.lag.mu.Lock()
	defer n.lag.mu.Unlock()
	n.lag.projections[name] = projection{stream, seq}
}

// Count has figures told to `tendril status`, by name. count is called by any goroutine.
func (n *Node) Count(count func(figures map[string]int64)) {
	n.lag.mu.Lock()
	defer n.lag.mu.Unlock()
	n.lag.counts = append(n.lag.counts, count)
}

// tell tells it to `tendril status`, until ctx ends.
func (l *lag) tell(ctx context.Context, n *Node) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	started := time.Now().UTC()
	for {
		p := proto.Progress{
			Process: n.process + " " + n.Worker, Version: obs.Version(), Domain: n.Settings.Domain, Started: started,
			Read: []proto.Reading{}, Counts: map[string]int64{}, Troubles: n.Ready.Troubles(),
		}
		for _, folder := range []string{n.Settings.RelayDataPath, n.Settings.GitDataPath} {
			if free, all, err := limit.Free(folder); err == nil && (len(p.Disks) == 0 || p.Disks[0].Bytes != all) {
				p.Disks = append(p.Disks, proto.Disk{Folder: folder, Free: free, Bytes: all})
			}
		}
		l.mu.Lock()
		for _, count := range l.counts {
			count(p.Counts)
		}
		for _, name := range slices.Sorted(maps.Keys(l.projections)) {
			p.Read = append(p.Read, proto.Reading{Name: name, Stream: l.projections[name].stream, Seq: l.projections[name].seq()})
		}
		l.mu.Unlock()
		data, err := json.Marshal(p)
		if err == nil {
			err = n.Bus.Conn.Publish(proto.SubjectProgress, data)
		}
		if err != nil {
			n.Log.Debug("telling how far this process has read", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Describe implements prometheus.Collector.
func (l *lag) Describe(ch chan<- *prometheus.Desc) { ch <- lagDesc }

// Collect implements prometheus.Collector.
func (l *lag) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.asked) > lagAge {
		ctx, cancel := context.WithTimeout(context.Background(), lagWait)
		defer cancel()
		l.asked, l.ends = time.Now(), map[string]uint64{}
		for _, p := range l.projections {
			if _, known := l.ends[p.stream]; known {
				continue
			}
			if end, err := bus.LastSeq(ctx, l.js, p.stream); err == nil {
				l.ends[p.stream] = end
			}
		}
	}
	for name, p := range l.projections {
		if end, known := l.ends[p.stream]; known {
			seq := p.seq()
			ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, float64(max(end, seq)-seq), name)
		}
	}
}
