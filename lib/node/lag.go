package node

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tendril.dev/proto"
)

const (
	// lagAge is how old the end of a stream may be that metrics are told from: whoever may read the
	// metrics must not make the bus work for every reading.
	lagAge = time.Second
	// lagWait bounds how long the bus is asked. What it does not say is not told.
	lagWait = 2 * time.Second
)

var lagDesc = prometheus.NewDesc("tendril_projection_lag",
	"How far a projection of this process is behind the end of its stream, in sequences.", []string{"projection"}, nil)

// lag is the metric of how far projections are behind their streams.
type lag struct {
	end func(ctx context.Context, stream string) (uint64, error)

	mu          sync.Mutex
	projections map[string]projection // by name
	ends        map[string]streamEnd  // by stream
}

// projection is what a service makes of a stream.
type projection struct {
	stream string
	seq    func() uint64 // of the last message read
}

// streamEnd is the sequence of a stream's last message, as it was at a time.
type streamEnd struct {
	seq   uint64
	known bool
	at    time.Time
}

func newLag(end func(ctx context.Context, stream string) (uint64, error)) *lag {
	return &lag{end: end, projections: map[string]projection{}, ends: map[string]streamEnd{}}
}

// Projection makes it a metric how far a service is behind a stream that it reads. seq is the
// sequence of the last message that it has read; it is called by any goroutine.
func (n *Node) Projection(name, stream string, seq func() uint64) {
	n.lag.mu.Lock()
	defer n.lag.mu.Unlock()
	n.lag.projections[name] = projection{stream, seq}
}

// tellEvery is how often a process tells how far it has read.
const tellEvery = time.Second

// tell tells it to `tendril status`, until ctx ends.
func (l *lag) tell(ctx context.Context, n *Node) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		p := proto.Progress{Process: n.process + " " + n.Worker, Read: []proto.Reading{}}
		l.mu.Lock()
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
	ctx, cancel := context.WithTimeout(context.Background(), lagWait)
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(l.projections)) {
		p := l.projections[name]
		if end := l.look(ctx, p.stream); end.known {
			behind := uint64(0)
			if seq := p.seq(); seq < end.seq {
				behind = end.seq - seq
			}
			ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, float64(behind), name)
		}
	}
}

// look is the end of a stream, not older than lagAge.
func (l *lag) look(ctx context.Context, stream string) streamEnd {
	if had, ok := l.ends[stream]; ok && time.Since(had.at) < lagAge {
		return had
	}
	seq, err := l.end(ctx, stream)
	l.ends[stream] = streamEnd{seq: seq, known: err == nil, at: time.Now()}
	return l.ends[stream]
}
