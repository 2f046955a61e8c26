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
	"tendril.dev/lib/disk"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
)

const (
	// tellEvery is how often a process tells how far it has read, and lookEvery how often it looks at
	// the ends of the streams for its metrics. lagWait bounds a look.
	tellEvery = time.Second
	lookEvery = 5 * time.Second
	lagWait   = 2 * time.Second
)

// lag is how far projections are behind their streams.
type lag struct {
	js     jetstream.JetStream
	behind *prometheus.GaugeVec

	mu          sync.Mutex
	projections map[string]projection // by name
	counts      []func(map[string]int64)
}

// projection is what a service makes of a stream.
type projection struct {
	stream string
	seq    func() uint64 // of the last message read
}

func newLag(js jetstream.JetStream, metrics prometheus.Registerer) *lag {
	l := &lag{js: js, projections: map[string]projection{}, behind: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tendril_projection_lag", Help: "How far a projection of this process is behind the end of its stream, in " +
			"sequences.",
	}, []string{"projection"})}
	metrics.MustRegister(l.behind)
	return l
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
	for looked := (time.Time{}); ; {
		if time.Since(looked) >= lookEvery {
			looked = time.Now()
			l.look(ctx)
		}
		p := proto.Progress{
			Process: n.process + " " + n.Worker, Version: obs.Version(), Domain: n.Settings.Address(), Started: started,
			Read: []proto.Reading{}, Counts: map[string]int64{}, Troubles: n.Ready.Troubles(),
		}
		for _, folder := range []string{n.Settings.RelayDataPath, n.Settings.GitDataPath} {
			if free, all, err := disk.Free(folder); err == nil && (len(p.Disks) == 0 || p.Disks[0].Bytes != all) {
				p.Disks = append(p.Disks, proto.Disk{Folder: folder, Free: free, Bytes: all})
			}
		}
		l.mu.Lock()
		for _, count := range l.counts {
			count(p.Counts)
		}
		for _, name := range slices.Sorted(maps.Keys(l.projections)) {
			p.Read = append(p.Read, proto.Reading{Name: name, Stream: l.projections[name].stream,
				Seq: l.projections[name].seq()})
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

// look measures how far the projections are behind. Of a stream that the bus does not tell of
// nothing is said.
func (l *lag) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lagWait)
	defer cancel()
	l.mu.Lock()
	projections := maps.Clone(l.projections)
	l.mu.Unlock()
	for name, p := range projections {
		end, err := bus.LastSeq(ctx, l.js, p.stream)
		if err != nil {
			l.behind.DeleteLabelValues(name)
			continue
		}
		seq := p.seq()
		l.behind.WithLabelValues(name).Set(float64(max(end, seq) - seq))
	}
}
