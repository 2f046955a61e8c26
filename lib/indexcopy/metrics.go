package indexcopy

import "github.com/prometheus/client_golang/prometheus"

const (
	wayGiven = "given"
	wayTaken = "taken"
)

// Metrics tell of copies of the index. nil tells nobody.
type Metrics struct {
	copies *prometheus.CounterVec
	bytes  *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		copies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tendril_index_copies_total", Help: "Copies of the event index, given to other processes or taken from them, by how they ended.",
		}, []string{"way", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tendril_index_copy_bytes_total", Help: "Bytes of copies of the event index, given to other processes or taken from them.",
		}, []string{"way"}),
	}
	for _, c := range []prometheus.Collector{m.copies, m.bytes} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	for _, way := range []string{wayGiven, wayTaken} {
		m.bytes.WithLabelValues(way)
		for _, result := range []string{"done", "failed"} {
			m.copies.WithLabelValues(way, result)
		}
	}
	return m, nil
}

func (m *Metrics) ended(way string, done bool) {
	if m == nil {
		return
	}
	result := "failed"
	if done {
		result = "done"
	}
	m.copies.WithLabelValues(way, result).Inc()
}

func (m *Metrics) gave(bytes int) { m.moved(wayGiven, bytes) }
func (m *Metrics) took(bytes int) { m.moved(wayTaken, bytes) }

func (m *Metrics) moved(way string, bytes int) {
	if m != nil {
		m.bytes.WithLabelValues(way).Add(float64(bytes))
	}
}
